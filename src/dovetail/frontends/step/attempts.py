"""Capturing one call, as often as it takes: attempts show which numbers, tensors and containers are inputs."""

from __future__ import annotations

from dovetail.capture.step_programs import GradientsNotCleared
from dovetail.errors import CaptureFailed, DovetailError, StateChangedOtherwise
from dovetail.frontends.step.capture import StepCapture
from dovetail.frontends.step.drawing_functions import NotBeforeRuns
from dovetail.frontends.step.eager_run import EagerRuns
from dovetail.frontends.step.guard import StepCall
from dovetail.frontends.step.interrupts import interrupts_wait
from dovetail.frontends.step.left_behind import (
    ContainersRead,
    ContainersWritten,
    FlagsTurned,
    MoreIsRead,
    NumbersToLift,
    StateToMake,
    TensorsToKeep,
)
from dovetail.frontends.step.lifting import Lifting, Numbers
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.variant import StepVariant
from dovetail.pipeline.options import Options

_MOST_ATTEMPTS = 50


class Attempts:
    """Captures calls of one step."""

    def __init__(self, lifting: Lifting, eager: EagerRuns, options: Options, name: str) -> None:
        """What is known of the step is shared with who calls it."""
        self._lifting = lifting
        self._eager = eager
        self._options = options
        self._name = name
        self._calls_hooks = False

    def captured(self, reachable: ReachableState, call: StepCall, clears: bool) -> StepVariant:
        """A program for a call. clears: programs of the step drop gradients from before.

        Raises: DovetailError; StateToMake.
        """
        left_out, first = Numbers(), None
        for _ in range(_MOST_ATTEMPTS):
            lifted = self._lifting.numbers(call.leaves, reachable) - left_out
            guarded = (self._lifting.guarded | left_out).slots
            capture = StepCapture(call, reachable, lifted, self._options, guarded, self._lifting)
            hints, hooks = self._eager.hints, self._calls_hooks
            try:
                with interrupts_wait():
                    variant = capture.variant(self._name, hints, assume_cleared=clears, calls_hooks=hooks)
                self._lifting.guarded |= left_out
                return variant
            except GradientsNotCleared:
                clears = False
            except MoreIsRead:
                continue
            except ContainersWritten as error:
                is_read = isinstance(error, ContainersRead)
                self._lifting.takes_for_write_only(error.paths, error.paths if is_read else frozenset())
                self._eager.read.unread = set(self._lifting.write_only)
                reachable.refresh()
            except TensorsToKeep as error:
                self._lifting.keeps(error.paths)
            except NumbersToLift as error:
                if first is not None and error.paths & left_out.slots:
                    raise first from first.__cause__
                self._lifting.writes(error.paths)
            except FlagsTurned as error:
                self._lifting.turned |= error.paths
                raise
            except (DovetailError, StateToMake, NotBeforeRuns) as error:
                wanted, useless = capture.drawing_functions
                fewer = self._lifting.fewer(lifted, capture.blamed - left_out, capture.hyperparameters)
                may_be_numbers = bool(useless) and fewer is not None  # that are inputs, and read by such a function
                if not may_be_numbers and self._lifting.draws_in(wanted, useless):
                    continue
                if isinstance(error, StateChangedOtherwise) and not hooks and capture.has_hooks:
                    self._calls_hooks = True  # it may be a hook that does what cannot be recorded
                    continue
                if not isinstance(error, NotBeforeRuns):
                    first = first or error
                if fewer is None:  # it is not because of numbers that are inputs
                    assert first is not None, "only one of the user's functions could not be called"
                    raise first from first.__cause__
                left_out |= fewer
        raise CaptureFailed(error="each attempt shows more that it reads or changes")
