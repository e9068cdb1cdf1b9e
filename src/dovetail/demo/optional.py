"""Load the packages that only the demo needs, and say how to get them when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from dovetail.errors import MissingDependency

_PACKAGES = ("matplotlib", "jinja2")


def load_optional(module: str) -> Any:
    """Import `module` and return it.

    Raises:
        MissingDependency: its package is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependency(feature="the demo", package=package, install="pip install 'dovetail[demo]'") from error


def check_optional_packages() -> None:
    """Raise `MissingDependency` now rather than after the training."""
    for package in _PACKAGES:
        load_optional(package)
