"""Checks of `torch_compat.dynamo`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from dovetail.torch_compat import dynamo
from dovetail.torch_compat.checks.difference import first_difference


def check_not_traced() -> str | None:
    """Dynamo is not asked about a marked function, nor about what it calls."""
    asked: list[str] = []

    def note(frame: Any, *_: object) -> Any:
        asked.append(frame.f_code.co_name)
        return torch._dynamo.types.ConvertFrameReturn(apply_to_code=False)  # ask again next time

    def called() -> int:
        return 1

    @dynamo.not_traced
    def marked() -> int:
        return called()

    def unmarked() -> int:
        return marked() + called()

    callback: Any = note
    set_eval_frame = torch._dynamo.eval_frame.set_eval_frame
    before = set_eval_frame(callback)
    try:
        unmarked()
    finally:
        set_eval_frame(before)
    wanted = [name for name in asked if name in ("called", "marked", "unmarked")]
    return first_difference(("what Dynamo was asked about", wanted, ["unmarked", "called"]))


def check_compiled_functions_run_plainly() -> str | None:
    """Dynamo makes nothing of a function that `torch.compile` was given, until afterwards."""
    made: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        made.append(graph)
        return graph

    compiled = torch.compile(lambda x: x + 1, backend=backend, fullgraph=True)
    with dynamo.compiled_functions_run_plainly():
        found = compiled(torch.ones(2)).tolist()
    return first_difference(("the result", found, [2.0, 2.0]), ("what was compiled", made, []))


def check_is_running_plainly() -> str | None:
    """It is seen while functions run plainly, and not before and after."""
    before = dynamo.is_running_plainly()
    with dynamo.compiled_functions_run_plainly():
        during = dynamo.is_running_plainly()
    loaded = "torch._dynamo" in sys.modules
    return first_difference(("answers", (before, during, dynamo.is_running_plainly()), (False, loaded, False)))


CHECKS = (check_is_running_plainly, check_compiled_functions_run_plainly, check_not_traced)
