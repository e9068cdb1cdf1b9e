"""Keeping Dynamo out of dovetail's own code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_code_exec_strategy

P = ParamSpec("P")
R = TypeVar("R")


def not_traced(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: where `torch.compile` runs or inlines code that calls this function, it leaves alone the function and
    all that it calls. The function itself stays, so that a call costs nothing more."""
    marked: Any = function
    set_code_exec_strategy(marked.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "dovetail compiles by itself"
    return function


@contextmanager
def compiled_functions_run_plainly() -> Iterator[None]:
    """While active, functions that `torch.compile` made run as they were written, if Dynamo was loaded before.

    For every thread, so that a call of another one is not compiled, but gives the same. Inside of Dynamo nothing
    changes: its graphs hold no such functions.
    """
    if "torch._dynamo" not in sys.modules or get_eval_frame_callback() not in (None, False):
        yield
        return
    before = torch._dynamo.eval_frame._set_stance(_plainly())
    try:
        yield
    finally:
        torch._dynamo.eval_frame._set_stance(before)


def is_running_plainly() -> bool:
    """Whether functions that `torch.compile` made run as they were written now."""
    return "torch._dynamo" in sys.modules and torch._dynamo.eval_frame._stance.stance == "force_eager"


@cache
def _plainly() -> Any:
    """Always the same object: code that is recorded may read it."""
    return torch._dynamo.eval_frame.DynamoStance("force_eager")
