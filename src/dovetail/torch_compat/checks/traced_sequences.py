"""Checks of `torch_compat.traced_sequences`."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from dovetail.torch_compat import traced_maths, traced_numbers, traced_sequences
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.checks.traced_numbers import TraceOfTexts


def check_followed_call() -> str | None:
    """A function of sequences of traced numbers is told, and NumPy's of one; of others, it is not."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 4.0)
    with traced_maths.traced_maths():
        mean, root = np.mean([number, 2.0]), np.sqrt(number)
    told: list[Any] = list(trace.told)
    (meant, operands), (_, of_root) = told
    other = traced_sequences.followed_call(statistics.mean, ([number, "text"],), {})
    return first_difference(
        ("the mean", traced_numbers.number_now(mean), 3.0),
        ("the root", traced_numbers.number_now(root), 2.0),
        ("what is told", (operands, of_root), (("x", 2.0), ("x",))),
        ("what is called", meant(6.0, 2.0), np.mean([6.0, 2.0])),
        ("of a text", other, NotImplemented),
        ("numpy.mean", np.mean([1.0, 2.0]), 1.5),
    )


CHECKS = (check_followed_call,)
