"""Record and compile a step for a call that is not made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.capture.exclusive import recording_alone, replacing
from dovetail.errors import CaptureFailed
from dovetail.execute.step import CompiledStepProgram
from dovetail.frontends.step.captures import StepCaptures
from dovetail.frontends.step.guard import StepCall
from dovetail.frontends.step.variant import StepVariant
from dovetail.frontends.structure import flatten_call
from dovetail.frontends.variant_cache import VariantCache
from dovetail.pipeline.options import Options


@dataclass(frozen=True, slots=True)
class Unrun:
    """A compiled step that has not run.

    program: of calls that find the optimizers' state; what it takes is described, nothing is held for it.
    made_bytes: of the state that the first call makes, which is part of `program.state_bytes`.
    """

    program: CompiledStepProgram
    made_bytes: int


def record_unrun(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    options: Options,
    state: Any = (),
) -> Unrun:
    """Record a step for these arguments on fakes, and compile it. Nothing runs, and all stays as it is.

    Raises: DovetailError, MemoryLimitTooLow among them.
    """
    name = getattr(step, "__name__", "step")
    captures = StepCaptures(VariantCache[StepVariant](name, 1), state, False, options)
    call = StepCall(step, *flatten_call(tuple(args), dict(kwargs)))
    captures.begin(call)
    with recording_alone(), replacing() as is_alone:
        if not is_alone:
            raise CaptureFailed(error="another thread is recording")
        variant, made_bytes = captures.unrun(call)
    return Unrun(variant.runner.program, made_bytes)
