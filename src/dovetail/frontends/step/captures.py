"""The programs of one step: finds the one for a call, captures another, or leaves the call to eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from dovetail.capture.step_programs import GradientsNotCleared
from dovetail.capture.step_questions import Question
from dovetail.errors import CaptureFailed, DovetailError, GuardMiss, MemoryLimitTooLow, StateChangedOtherwise
from dovetail.frontends.patience import Walks
from dovetail.frontends.step.capture import StepCapture
from dovetail.frontends.step.drawing_functions import NotBeforeRuns
from dovetail.frontends.step.eager_run import EagerRuns, leads_on
from dovetail.frontends.step.guard import NOTHING, UNBOUND, StepCall
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
from dovetail.frontends.step.searches import SearchCalled
from dovetail.frontends.step.variant import StepVariant, bindings_to
from dovetail.frontends.variant_cache import VariantCache
from dovetail.pipeline.options import Options

Chosen: TypeAlias = tuple[StepVariant, list[torch.Tensor]]

_MOST_ATTEMPTS = 50
_MOST_ROUNDS = 3  # calls in eager mode, one after the other, that make state for the next one


class StepCaptures:
    """See the module docstring.

    given_up: why the step runs in eager mode from now on. searching: the optimizers of a step that calls LBFGS.
    """

    def __init__(self, cache: VariantCache[StepVariant], state: Any, falls_back: bool, options: Options) -> None:
        """Capture nothing yet. falls_back: run in eager mode what cannot be captured."""
        self.given_up: DovetailError | None = None
        self.searching: list[torch.optim.Optimizer] | None = None
        self._cache = cache
        self._state = state
        self._falls_back = falls_back
        self._lifting = Lifting()
        self._eager = EagerRuns()
        self._options = options
        self._calls_hooks = False
        self._missed = self._failed = False
        self._rounds = 0
        self._last_miss: Question | None = None
        self._walks = Walks()

    def is_first(self, call: StepCall) -> bool:
        """Whether no call was watched yet. Such a call runs in eager mode; its arguments are noted."""
        if self._eager.has_watched:
            return False
        self._lifting.see(call.leaves, call.structure)
        return True

    def run_eager(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the step in eager mode, and note the numbers that it reads off tensors, as hints for captures."""
        self._cache.counts.eager_calls += 1
        if self._cache.is_full:
            return step(*args, **kwargs)
        try:
            return self._eager.run(step, args, kwargs)
        except Exception:
            self._failed = False  # it is the step's own error
            raise

    def missed(self, variant: StepVariant, miss: GuardMiss) -> None:
        """A program has asked a question that got another answer."""
        self._last_miss = variant.guard.questions[miss.number]
        variant.misses += 1
        self._cache.counts.guard_misses += 1

    def chosen(self, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """The program for a call, captured when there is none; None for eager mode.

        tried: variants whose questions got other answers in this call.
        """
        cache = self._cache
        found = cache.find(call.leaves, call.structure, tried)
        if found is not None:
            return found
        cache.counts.misses += not tried
        if cache.is_full and not self._may_fit_again(call, tried):
            cache.refuse(lambda: self._why(self._reachable(call), call, tried), stacklevel=3)
            return None
        reachable = self._reachable(call)
        found = self._find_in(reachable, call, tried)
        if cache.is_full:
            self._walks.was(cache.counts.calls, fruitful=found is not None)
        if found is not None:
            return found
        if tried and not self._missed:
            self._missed = True  # it may have been this once
            return None
        self._missed = False
        cache.drop_dead()
        reason = self._why(reachable, call, tried)
        return cache.captured(lambda: reason, partial(self._captured, reachable, call, tried), stacklevel=3)

    def _may_fit_again(self, call: StepCall, tried: Sequence[StepVariant]) -> bool:
        """Whether looking at everything that the step reaches may show that a variant fits."""
        others = [variant.guard for variant in self._cache.variants if variant not in tried]
        return self._walks.may_be(self._cache.counts.calls) and any(
            guard.is_kept_by_state(call.leaves, call.structure) for guard in others
        )

    def _reachable(self, call: StepCall) -> ReachableState:
        return ReachableState(call.step, self._eager.read, filter(leads_on, call.leaves), self._state)

    def _find_in(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """A variant for a call in a reachable state that was looked at again: after a checkpoint was loaded, say."""
        for variant in self._cache.recent:
            guard = variant.guard
            if variant in tried or not guard.arguments.are(call.leaves, call.structure):
                continue
            if guard.record.fits(reachable.record(guard.lifted)) and guard.bind(
                bindings_to(reachable, guard, variant.runner), call.leaves
            ):
                tensors = guard.inputs(call.leaves, call.structure)
                if tensors is not None:
                    self._cache.prefer(variant)
                    self._let_go(reachable)
                    return variant, tensors
        return None

    def _let_go(self, reachable: ReachableState) -> None:
        """Cut the bindings of variants to tensors that the present reachable state does not hold any more."""
        held = {id(tensor) for _, tensor in reachable.tensors} | {id(NOTHING)}
        for guard in (variant.guard for variant in self._cache.variants):
            if not held.issuperset(map(id, guard.bindings.tensors)):
                guard.bindings = UNBOUND

    def _why(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> str:
        if tried:
            return f"a check had another outcome: {self._last_miss}"
        return self._cache.why(lambda variant: variant.guard.why(call.leaves, call.structure, reachable))

    def _captured(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """A new program; None when the call is left to eager mode. Raises: DovetailError."""
        guards = [variant.guard for variant in self._cache.variants if variant not in tried]
        self._lifting.learn(call.leaves, call.structure, reachable, guards)
        try:
            variant = self._attempted(reachable, call)
        except SearchCalled:
            self.searching = [optimizer for _, optimizer in reachable.optimizers]
            return None
        except StateToMake as making:
            if self._rounds < _MOST_ROUNDS:
                self._rounds += 1
            else:
                self._give_up(making.error)
            return None
        except MemoryLimitTooLow:  # eager mode would not keep it either
            raise
        except DovetailError as error:
            if isinstance(error, CaptureFailed) and not self._failed:
                self._failed = True  # eager mode raises what is to be raised, or shows that it is our doing
            else:
                self._give_up(error)
            return None
        self._failed, self._rounds = False, 0
        self._let_go(reachable)
        return variant, variant.guard.expected(call.leaves)

    def _attempted(self, reachable: ReachableState, call: StepCall) -> StepVariant:
        """A program for a call; attempts show which numbers, tensors and containers are inputs.

        Raises: DovetailError; StateToMake.
        """
        clears = any(g.is_cleared for v in self._cache.variants for g in v.runner.program.plan.gradients)
        left_out, first = Numbers(), None
        for _ in range(_MOST_ATTEMPTS):
            lifted = self._lifting.numbers(call.leaves, reachable) - left_out
            guarded = (self._lifting.guarded | left_out).slots
            capture = StepCapture(call, reachable, lifted, self._options, guarded, self._lifting)
            hints, hooks = self._eager.hints, self._calls_hooks
            try:
                with interrupts_wait():
                    variant = capture.variant(self._cache.name, hints, assume_cleared=clears, calls_hooks=hooks)
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

    def _give_up(self, error: DovetailError) -> None:
        """Raise the error, or run in eager mode from now on."""
        if not self._falls_back:
            error.offer("compile_step(..., on_unsupported='eager')")
            raise error
        self.given_up = error
        text = f"{self._cache.name} runs in eager mode from now on, because it cannot be captured:\n{error}"
        self._cache.warn(text, stacklevel=6)
