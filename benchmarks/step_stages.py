"""Time the stages in which a step becomes a program: recording, functionalizing, passes, code; the rest is Python."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from dovetail.capture.step_recording import StepRecording
from dovetail.execute.compiled import CompiledProgram
from dovetail.pipeline.step import compile_step_programs


@contextmanager
def stages_timed() -> Iterator[dict[str, float]]:
    """Processor seconds by stage of what is captured while the block runs. passes: without the code made among them."""
    passed: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(_timed(StepRecording, "run", "record", passed))
        stack.enter_context(_timed(StepRecording, "programs", "functionalize", passed))
        stack.enter_context(_timed(CompiledProgram, "__init__", "code", passed))
        users = [module for module in list(sys.modules.values()) if _uses(module)]
        for module in users:
            stack.enter_context(_timed(module, compile_step_programs.__name__, "passes", passed))
        yield passed
    if "passes" in passed:
        passed["passes"] -= passed.get("code", 0.0)


def _uses(module: Any) -> bool:
    return getattr(module, "__dict__", {}).get(compile_step_programs.__name__) is compile_step_programs


@contextmanager
def _timed(holder: Any, name: str, stage: str, passed: dict[str, float]) -> Iterator[None]:
    original: Callable[..., Any] = getattr(holder, name)

    @wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return original(*args, **kwargs)
        finally:
            passed[stage] = passed.get(stage, 0.0) + time.process_time() - started

    setattr(holder, name, timed)
    try:
        yield
    finally:
        setattr(holder, name, original)
