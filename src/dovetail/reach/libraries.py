"""What belongs to torch, to dovetail or to Python itself, and what to the user."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import torch

from dovetail.ir.provenance import is_library_file

# classes of torch whose objects are the user's
FOLLOWED = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
FOLLOWED_PACKAGES = (
    *("torch.distributed.algorithms.", "torch.distributed._composable.", "torch.distributed.pipelining."),
    "torch.ao.pruning.",
)
OURS = __file__.rpartition("/reach/")[0]
_SCRIPTS = ("__main__", "__mp_main__")
_LIBRARIES = sys.stdlib_module_names | {"torch", "dovetail"}


def is_followed(item: object) -> bool:
    """Whether an object counts as the user's though torch wrote its class, and reads and writes it on its behalf."""
    kind = type(item)
    return issubclass(kind, FOLLOWED) or str(type.__getattribute__(kind, "__module__")).startswith(FOLLOWED_PACKAGES)


def is_library_class(kind: type) -> bool:
    """Whether a class is of torch, dovetail or Python itself, not of the user."""
    return is_library_module(type.__getattribute__(kind, "__module__"))


@functools.cache
def is_library_module(name: object) -> bool:
    """Whether a module of this name is of torch, dovetail or Python itself.

    One without a file is the user's unless its name says otherwise: `__main__` of a notebook, code made at run time. A
    script always is: whoever runs it (`python -m cProfile`, a debugger) may stand in the table of modules in its place.
    """
    if name in _SCRIPTS:
        return False
    file = _file_of(str(name))
    if isinstance(file, str):
        return is_library_file(file)
    return str(name).partition(".")[0] in _LIBRARIES


def _file_of(name: str) -> object:
    """The file of a loaded module, as it says itself; a `__getattr__` of the user's is not run."""
    module = sys.modules.get(name)
    return vars(module).get("__file__") if isinstance(module, ModuleType) else None


def is_users_function(function: FunctionType) -> bool:
    """Whether a function is the user's: by the file of its code, or by its module where that was made at run time."""
    file = function.__code__.co_filename
    if file.startswith("<") and not file.startswith(("<frozen", "<dovetail")):
        return not is_library_module(function.__globals__.get("__name__"))
    return not is_library_file(file)


def is_ours(value: object) -> bool:
    """Whether a function is of this package: it may stand in for another one while a call is recorded."""
    if isinstance(value, staticmethod | property):
        value = value.__func__ if isinstance(value, staticmethod) else value.fget
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(OURS)


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module of this name was installed, as far as the folder says that it lies in."""
    if module == "__main__":  # whoever runs the script may stand there in its place
        return False
    file = _file_of(module)
    return isinstance(file, str) and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def is_own_count(module: str, *, is_guessed: bool) -> bool:
    """Whether a counter that a module holds only numbers what a library makes. is_guessed: nothing tells whether it is
    read: it is in reach of code that was given to Dynamo, say.
    """
    return is_library_module(module) or (is_guessed and is_installed(module))
