"""Checks of `torch_compat.boxed`."""

from __future__ import annotations

import importlib

from dovetail.torch_compat import boxed
from dovetail.torch_compat.checks.difference import first_difference


def check_is_boxed() -> str | None:
    """What torch boxes is seen to be boxed, and what is not is not."""
    aot_autograd = importlib.import_module("torch._functorch.aot_autograd")  # slow to load, and needed here only
    return first_difference(
        ("a function that torch has boxed", boxed.is_boxed(aot_autograd.make_boxed_func(abs)), True),
        ("a plain function", boxed.is_boxed(abs), False),
    )


def check_boxed() -> str | None:
    """A function that was boxed takes a list and empties it."""
    given = [-2]
    return first_difference(
        ("the result", boxed.boxed(abs)(given), 2),
        ("what is left of the list", given, []),
    )


CHECKS = (check_is_boxed, check_boxed)
