"""timm without torchvision.

timm imports torchvision's transforms, data sets and one layer when it is imported. Its models compute with none of
them. While timm is imported, the names that it asks for are placeholders, so that its models can be made where
torchvision is not installed; afterwards there is no torchvision for anybody, as before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_REPLACED = "torchvision"


class _Placeholder(type):
    """The class of placeholders. They are classes, so that `isinstance` and class statements take them."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{cls.__name__} needs torchvision, which is not installed")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Placeholder(name, (), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds torchvision and all its modules, with whatever is asked of them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == _REPLACED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def timm() -> Any:
    """The module `timm`."""
    if "timm" in sys.modules or find_spec(_REPLACED) is not None:
        return import_module("timm")
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        return import_module("timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == _REPLACED]:
            del sys.modules[name]
