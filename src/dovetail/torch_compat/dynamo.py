"""Keeping Dynamo out of dovetail's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy

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
