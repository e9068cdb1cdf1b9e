"""The programs of one step: finds the one for a call, captures another, or leaves the call to eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dovetail.capture.step_programs import GradientsNotCleared
from dovetail.capture.step_questions import Question
from dovetail.errors import (
    CaptureFailed,
    DataDependentControlFlow,
    DovetailError,
    GuardMiss,
    MemoryLimitTooLow,
    ModuleToPrepare,
    OffloadUnavailable,
    UnsupportedDistributed,
)
from dovetail.frontends.patience import Walks
from dovetail.frontends.step.attempts import (
    ContainersRead,
    ContainersWritten,
    ManyChoices,
    MoreIsRead,
    NumbersToLift,
    StateToMake,
    TensorsToKeep,
    in_short,
    said_of_eager_mode,
)
from dovetail.frontends.step.capture import StepCapture
from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.drawing_functions import NotBeforeRuns
from dovetail.frontends.step.eager_run import EagerRuns
from dovetail.frontends.step.guard import UNBOUND, StepCall
from dovetail.frontends.step.interrupts import interrupts_wait
from dovetail.frontends.step.lifting import Lifting, Numbers
from dovetail.frontends.step.made_state import MadeState, give_up, take_away
from dovetail.frontends.step.passed import pass_objects
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.recorded import Recorded
from dovetail.frontends.step.same_recordings import once_only
from dovetail.frontends.step.searches import SearchCalled
from dovetail.frontends.step.sharded_modules import ShardedModules
from dovetail.frontends.step.told_once import ToldOnce
from dovetail.frontends.step.variant import Chosen, StepVariant, let_go, tie
from dovetail.frontends.step.waiting_draws import WaitingDraws
from dovetail.frontends.variant_cache import VariantCache
from dovetail.ir.program import Value
from dovetail.passes.collection import collection_paused
from dovetail.pipeline.options import Options
from dovetail.reach.names import Names

_MOST_ATTEMPTS = 50
_MOST_ROUNDS = 3  # calls, one after the other, that make state in the same containers


class StepCaptures:
    """See the module docstring.

    given_up: why it runs in eager mode now. searching: optimizers of one that calls LBFGS. sharded: its modules.
    falls_back: whether eager mode runs what cannot be captured. passed: see `pass_objects`.
    """

    capture: type[StepCapture] = StepCapture

    def __init__(self, cache: VariantCache[StepVariant], state: Any, falls_back: bool, options: Options) -> None:
        self.given_up: DovetailError | None = None
        self.searching: list[torch.optim.Optimizer] | None = None
        self._cache, self._state, self.falls_back, self._options = cache, state, falls_back, options
        self._new_lifting = partial(Lifting, may_have_symbols=options.memory_limit is None, dynamic=options.dynamic)
        self._lifting, self._eager, self._why_eager, self._once = self._new_lifting(), EagerRuns(), "", ToldOnce()
        self._missed = self._failed = False
        self._refused: UnsupportedDistributed | None = None
        self._rounds, self._filled, self._made = 0, frozenset[Path](), frozenset[Path]()
        self._last_miss: Question | None = None
        self.passed: list[Any] = []
        self._walks, self._answers, self._put = Walks(), dict[object, Any](), list[tuple[Slot, Any]]()
        self._is_shown, self._begins_cleared, self.sharded = False, True, ShardedModules()

    def begin(self, call: StepCall) -> None:
        """A call begins."""
        self._put = []
        self._lifting.begin(call.leaves, call.structure)

    def run_eager(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the step in eager mode, and note the numbers that it reads off tensors, as hints for captures."""
        self._cache.counts.eager_calls += 1
        why, self._why_eager = self._why_eager, ""
        self._once.make()
        if self._cache.is_full:
            return step(*args, **kwargs)
        try:
            results = self._eager.run(step, args, kwargs)
        except BaseException:
            self._failed = False  # it is the step's own error
            raise
        self._say_why(why)
        return results

    def ran(self, variant: StepVariant) -> None:
        """The program that was chosen has run: the state that was made for it is there to stay."""
        self._put = []
        if variant.calls > 1:
            self._rounds, variant.is_once = 0, False

    def did_not_run(self, why: str = "") -> None:
        """It has not, and nothing was written: all is to be as it was. why: eager mode goes on, if that is new."""
        self._why_eager = why or self._why_eager
        take_away(self._put)
        self._put = []

    def missed(self, variant: StepVariant, miss: GuardMiss) -> None:
        """A program has asked a question that got another answer."""
        self._last_miss = variant.guard.questions[miss.number]
        self._lifting.missed(self._last_miss, miss.number)
        variant.misses += 1
        self._cache.counts.guard_misses += 1

    def chosen(self, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """The program for a call, captured when there is none; None for eager mode. tried: variants whose questions got
        other answers in this call.
        """
        cache = self._cache
        if (found := cache.find(call.leaves, call.structure, tried)) is not None:
            return found
        cache.counts.misses += not tried
        if cache.is_full and not (cache.has_idle or self._may_fit_again(call, tried)):
            cache.refuse(lambda: self._why(self._reachable(call), call, tried))
            return None
        reachable = self._reachable(call)
        found = self._find_in(reachable, call, tried)
        if cache.is_full:
            self._walks.was(cache.counts.calls, fruitful=found is not None)
        if found is not None:
            return found
        let_go(self._cache.variants, reachable)
        if tried and not self._missed:
            self._missed = True  # it may have been this once
            self._why_eager = f"a check had another outcome: {self._last_miss}"
            return None
        self._missed = False
        cache.drop_dead()
        reason = self._why(reachable, call, tried)
        return cache.captured(lambda: reason, partial(self._captured, reachable, call, tried))

    def _may_fit_again(self, call: StepCall, tried: Sequence[StepVariant]) -> bool:
        """Whether looking at everything that the step reaches may show that a variant fits."""
        others = [variant.guard for variant in self._cache.variants if variant not in tried]
        return self._walks.may_be(self._cache.counts.calls) and any(
            guard.is_kept_by_state(call.leaves, call.structure) for guard in others
        )

    def _reachable(self, call: StepCall) -> ReachableState:
        found = ReachableState(call.step, self._eager.read, call.leaves, self._state, self.passed)
        if self.sharded.find(module for _, module in found.modules):
            found.refresh()
        return found

    def _find_in(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """A variant for a call in a reachable state that was looked at again: after a checkpoint was loaded, say."""
        for variant in [*self._cache.recent]:
            guard, before = variant.guard, variant.guard.bound_to
            if variant in tried or not guard.arguments.are(call.leaves, call.structure):
                continue
            is_tied = tie(variant, reachable, call.leaves)
            if is_tied and (tensors := guard.inputs(call.leaves, call.structure)) is not None:
                if self._lifting.finds_replaced(guard, before, reachable):
                    return self._lifting.renewed(self._cache, (variant, tensors), partial(self._tried, reachable, call))
                self._cache.prefer(variant)
                let_go(self._cache.variants, reachable)
                return variant, tensors
        return None

    def _tried(self, reachable: ReachableState, call: StepCall) -> Chosen | None:
        """A new program; None where there is none, which nobody is told."""
        try:
            variant, _ = self._attempted(reachable, call)
        except (DovetailError, StateToMake, SearchCalled):
            return None
        return None if variant is None else (variant, variant.guard.expected(call.leaves))

    def _why(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> str:
        if tried:
            return f"a check had another outcome: {self._last_miss}"
        return self._cache.why(lambda variant: variant.guard.why(call.leaves, call.structure, reachable))

    def _captured(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> Chosen | None:
        """A new program; None when the call is left to eager mode. Raises: DovetailError."""
        guards = [variant.guard for variant in self._cache.variants if variant not in tried]
        self._lifting.learn(call.leaves, call.structure, reachable, guards)
        self._answers = {}
        try:
            variant, recorded = self._attempted(reachable, call)
            if variant is None:
                variant, reachable = self._with_state(recorded, reachable, call)
            else:
                self._rounds = 0
        except SearchCalled:
            self.searching = [optimizer for _, optimizer in reachable.optimizers]
            return None
        except (MemoryLimitTooLow, OffloadUnavailable):  # eager mode would not keep the limit
            raise
        except (StateToMake, DovetailError) as error:
            self._left_to_eager(error, call)
            return None
        self._failed, self._refused = False, None
        self._once.give_to(variant.runner)
        let_go(self._cache.variants, reachable)
        return variant, variant.guard.expected(call.leaves)

    def _left_to_eager(self, error: StateToMake | DovetailError, call: StepCall) -> None:
        """A call runs in eager mode. Raises: DovetailError where that would be no use for later calls."""
        self._why_eager = in_short(error.error if isinstance(error, StateToMake) else error)
        is_shown = not self._cache.variants or isinstance(error, DataDependentControlFlow)  # by a call in eager mode
        if isinstance(error, ModuleToPrepare):  # calls in eager mode do so, unless it is the step that undoes it
            if self._refused is not None:
                self._give_up(self._refused)
        elif isinstance(error, DovetailError) and is_shown and not self._eager.has_watched:
            self._refused = error if isinstance(error, UnsupportedDistributed) else None
            if not self._cache.variants:
                self._lifting = self._new_lifting()
                self._lifting.see(call.leaves, call.structure)
                self._eager.read = Names()
        elif isinstance(error, StateToMake):
            is_best = isinstance(error, ManyChoices)
            if is_best or self._rounds == _MOST_ROUNDS:
                self._give_up(error.error, is_best=is_best and self._options.memory_limit is None)
            self._rounds += 1
        elif isinstance(error, CaptureFailed) and not self._failed:
            self._failed = True  # eager mode raises what is to be raised, or shows that it is our doing
        else:
            self._give_up(error)

    def _with_state(
        self, first: Recorded, reachable: ReachableState, call: StepCall
    ) -> tuple[StepVariant, ReachableState]:
        """A program for a call that makes state, and another one for later calls, where that can be.

        One program is for all calls if what is made does not depend on data: it is made before the program runs.
        Raises: DovetailError; StateToMake where eager mode is to make it.
        """
        made = MadeState(first)
        if made.filled & self._filled and not made.paths & self._made:  # else it was taken away, or its owner replaced
            if self._rounds == _MOST_ROUNDS:
                raise StateToMake(first.made[0].error)
            self._rounds += 1
        self._filled, self._made = made.filled, self._made | made.paths
        self._lifting.turned |= made.turned
        later = self._later(made, call) if made.can_be_stood_in_for else None
        if later is not None:
            variant, recorded, found = later
            once = once_only(first, recorded, found) if made.is_of_plain_tensors else None
            give_up(found.values())
            has_room = self._options.memory_limit is not None or made.is_no_more_than_eager(variant.runner.program)
            if once is not None and has_room and not made.turns_flags_early(recorded):
                now = self._begun(made, made.begun(once.nodes), variant, call)
                if now is not None:
                    variant.runner.next_calls = once.host_calls
                    return variant, now
        with collection_paused():
            of_this_call = first.tied(self._cache.name, made.options(self._options, is_once=later is not None))
        if later is not None:
            variant.reason, of_this_call.is_once = "later calls find what the first one makes", True
            self._cache.add(variant)
        return of_this_call, reachable

    def _begun(
        self, made: MadeState, tensors: dict[int, torch.Tensor], variant: StepVariant, call: StepCall
    ) -> ReachableState | None:
        """The reachable state with what a step makes, to which a program is tied; None where it does not fit."""
        is_tied = False
        try:
            self._put = made.before
            made.put(tensors)
            now = self._reachable(call)
            is_tied = tie(variant, now, call.leaves)
        finally:
            if not is_tied:
                self.did_not_run()
        return now if is_tied else None

    def _later(self, made: MadeState, call: StepCall) -> tuple[StepVariant, Recorded, dict[Value, torch.Tensor]] | None:
        """A program for calls that find the state, not tied to anything; None where there is none.

        With it: its recording, and the tensors that stood in, by the value that the first call makes.
        """
        tensors = made.stand_ins()
        with made.stood_in(tensors):
            try:
                variant, recorded = self._attempted(self._reachable(call), call)
            except (MemoryLimitTooLow, OffloadUnavailable):
                raise
            except (DovetailError, StateToMake, SearchCalled):
                return None
            if variant is None:
                return None
            variant.guard.bindings = UNBOUND
            return variant, recorded, {value: tensors[place] for place, value in made.values().items()}

    def _attempted(self, reachable: ReachableState, call: StepCall) -> tuple[StepVariant | None, Recorded]:
        """A program for a call, None where the step makes state, and its recording. Raises: DovetailError; StateToMake.

        A first step is expected to begin by clearing gradients, as later ones do, so that one program is for both.
        """
        if self._cache.variants:
            cleared = [g.is_cleared for v in self._cache.variants for g in v.runner.program.plan.gradients]
            return self._after_attempts(reachable, call, any(cleared))
        if self._begins_cleared:
            try:
                return self._after_attempts(reachable, call, True)
            except (MemoryLimitTooLow, OffloadUnavailable, DataDependentControlFlow, ModuleToPrepare, ManyChoices):
                raise
            except (DovetailError, StateToMake):  # it may be because of gradients that are not there
                self._begins_cleared = False
        return self._after_attempts(reachable, call, False)

    def _after_attempts(
        self, reachable: ReachableState, call: StepCall, clears: bool
    ) -> tuple[StepVariant | None, Recorded]:
        """See `_attempted`: attempts show which numbers, tensors and containers are inputs. clears: whether the step is
        expected to begin by clearing gradients.
        """
        left_out, first = Numbers(), None
        with WaitingDraws() as others:
            for _ in range(_MOST_ATTEMPTS):
                lifted = self._lifting.numbers(call.leaves, reachable) - left_out
                guarded = (self._lifting.guarded | left_out).slots
                capture = self.capture(call, reachable, lifted, self._options, guarded, self._lifting)
                capture.answers, capture.told_once = self._answers, self._once.note
                capture.stops_at_weights, self._is_shown = not self._is_shown, True
                hints, hooks, capture.waiting = self._eager.hints, self._lifting.calls_hooks, others
                try:
                    with interrupts_wait():
                        found = capture.variant(self._cache.name, hints, assume_cleared=clears, calls_hooks=hooks)
                    if not self._lifting.reads_arrays(reachable, is_wanted=capture.wants_arrays, needs_some=True):
                        self._lifting.leave_out(left_out)
                        return found
                except (GradientsNotCleared, MoreIsRead) as error:
                    if GradientsNotCleared in map(type, (error, error.__cause__)):
                        clears = self._begins_cleared = False
                except ContainersWritten as error:
                    is_read = isinstance(error, ContainersRead)
                    self._lifting.takes_for_write_only(error.paths, error.paths if is_read else frozenset())
                    self._eager.read.unread = set(self._lifting.write_only)
                    reachable.refresh()
                except TensorsToKeep as error:
                    self._lifting.keeps(error.paths)
                except NumbersToLift as error:
                    self._lifting.writes(error.paths, left_out.slots)
                except (DovetailError, StateToMake, NotBeforeRuns) as error:
                    if capture.stops_at_weights or others.may_have_caused(error, reachable):
                        continue  # it may be because of that
                    fewer = self._lifting.fewer(lifted, capture.blamed - left_out, capture.hyperparameters)
                    may_be = fewer is not None and bool(capture.drawing_functions[1])  # numbers that these read
                    if self._lifting.has_another_way(error, capture, reachable, may_be_numbers=may_be):
                        continue
                    first = first or (None if isinstance(error, NotBeforeRuns) else error)
                    if fewer is None:  # it is not because of numbers that are inputs
                        assert first is not None, "only one of the user's functions could not be called"
                        first = error if isinstance(error, CaptureFailed) and not self._failed else first
                        raise first from first.__cause__
                    left_out |= fewer
        raise CaptureFailed(error="each attempt shows more that it reads or changes")

    def _say_why(self, why: str) -> None:
        """A call has run in eager mode; under a limit, which it may have passed, that is said once. why: or ""."""
        self._cache.counts.eager_reasons.update({why: None} if why else {})
        if why and (limit := self._options.memory_limit) is not None:
            text = f"a call ran in eager mode, and was not held to memory_limit={limit!r}, because {why}"
            self._cache.warn(f"{self._cache.name}: {text}")

    def unrun(self, call: StepCall) -> tuple[StepVariant, int]:
        """A program for a call, as later calls find it, and the bytes of the state that the first one makes, which are
        state of the program. Nothing runs, and all is as before. Raises: DovetailError.
        """
        pass_objects(self.passed, call.leaves)
        try:
            variant, recorded = self._attempted(self._reachable(call), call)
            if variant is not None:
                return variant, 0
            made = MadeState(recorded)
            if made.can_be_stood_in_for and (later := self._later(made, call)) is not None:
                return later[0], made.size_bytes
            return recorded.tied(self._cache.name, made.options(self._options)), 0
        except StateToMake as making:
            raise making.error from None

    def _give_up(self, error: DovetailError, *, is_best: bool = False) -> None:
        """Raise the error, or run in eager mode from now on. is_best: whatever the user has said."""
        if not (self.falls_back or is_best):
            error.offer("compile_step(..., on_unsupported='eager')")
            raise error
        self.given_up = error
        self._cache.warn(said_of_eager_mode(self._cache.name, error, is_best=is_best))
