"""What can be compiled without Dynamo: functions, modules (an `fx.GraphModule` is one) and exported programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.errors import BadOptionValue


def as_callable(target: Any) -> Callable[..., Any]:
    """The target as something that can be called; an exported program as its module, which shares its weights.

    Raises: BadOptionValue.
    """
    if isinstance(target, torch.export.ExportedProgram):
        return target.module()
    if not callable(target):
        expected = "a function, a module or an exported program"
        if isinstance(target, classmethod):
            expected = "the function under the decorator: write @classmethod above @dovetail.compile"
        raise BadOptionValue(option="target", value=target, reason="it is called", expected=expected)
    called: Callable[..., Any] = target
    return called


def arguments_of_call(name: str, given: object) -> Sequence[Any]:
    """The arguments of an example call, by position. name: what it was given as. Raises: BadOptionValue."""
    if not isinstance(given, list | tuple):
        expected = "a tuple or list with the arguments of one call, by position: (x,)"
        raise BadOptionValue(option=name, value=f"a {type(given).__name__}", reason="it is a call", expected=expected)
    return given


def default_options(target: Any) -> Mapping[str, object]:
    """Options that a target brings along: one that was exported with dynamic sizes is compiled for them."""
    is_dynamic = isinstance(target, torch.export.ExportedProgram) and bool(target.range_constraints)
    return {"dynamic": True} if is_dynamic else {}
