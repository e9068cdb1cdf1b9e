"""Checks of `torch_compat.traced_maths`."""

from __future__ import annotations

import math

from torch.nn.modules import batchnorm
from torch.nn.utils import clip_grad

from dovetail.torch_compat import traced_maths, traced_numbers
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.checks.traced_numbers import TraceOfTexts


def check_traced_maths() -> str | None:
    """Functions of `math` are told meanwhile, and are themselves afterwards."""
    trace, before = TraceOfTexts(), math.sqrt
    number = traced_numbers.traced_number(trace, "x", 4.0)
    with traced_maths.traced_maths():
        root = traced_numbers.number_now(math.sqrt(number))
        text = f"{number:.2f}, {number!s}"
        plain = [vars(module)["float"](number) for module in (clip_grad, batchnorm)]
    return first_difference(
        ("the text", text, "x as 0.50, x as 0.5"),
        ("the root", root, 2.0),
        ("what is told", trace.told, [(before, ("x",))]),
        ("whether bounds of gradients, and counts, are traced", list(map(traced_numbers.is_traced, plain)), [True] * 2),
        ("whether they are afterwards", ["float" in vars(module) for module in (clip_grad, batchnorm)], [False] * 2),
        ("math.sqrt", math.sqrt, before),
    )


def check_untraced() -> str | None:
    """What stands in for a function tells which one."""
    before = math.sqrt
    with traced_maths.traced_maths():
        found = traced_maths.untraced(math.sqrt)
    return first_difference(
        ("what was there before", found, before), ("of itself", traced_maths.untraced(before), before)
    )


CHECKS = (check_traced_maths, check_untraced)
