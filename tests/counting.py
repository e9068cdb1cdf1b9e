"""How much work a function does, counted instead of timed: the same number on a busy and on a slow machine.

A step is a line of Python that was begun, a Python function that was called, or a C function that was called. Work
inside C functions (`x in list`, a copy of a list) counts as one step, however long it takes. A loop in Python
over all other nodes, for each node, is what tests are after: it shows as four times the steps where the input doubles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# What `growth` stays below where work is linear but for a logarithm.
LINEAR = 1.2


def steps_of(function: Callable[[], object]) -> int:
    """Steps that a call of the function takes in this thread. Takes about ten times as long as the call alone."""
    steps = 0

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(on_line)
    sys.setprofile(on_call)
    try:
        function()
    finally:
        sys.setprofile(profiler)
        sys.settrace(tracer)
    return steps


def growth(of_size: Callable[[int], Callable[[], object]], size: int, times: int = 2) -> float:
    """The exponent with which work grows with its input: 1 if linear, 2 if quadratic.

    Measured between an input of a size and one that is so many times larger. of_size: makes the work for a size; making
    it is not counted.
    """
    small, large = of_size(size), of_size(times * size)
    return math.log(steps_of(large) / steps_of(small), times)
