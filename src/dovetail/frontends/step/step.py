"""`dovetail.compile_step(step)`: a whole training step, the user's own code, as one program.

The first call runs in eager mode: optimizers make their state, lazy modules their parameters, and the numbers that the
code reads off tensors are noted as hints. The second call captures. From then on each call runs an existing
program whose guards hold, or captures another one. See docs/training-step.md.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, TypeAlias, overload

import torch

from dovetail.capture.exclusive import RECORDING, is_part_of_a_step, replacing
from dovetail.capture.step_recorder import Question
from dovetail.errors import (
    BadOptionValue,
    CaptureFailed,
    DovetailError,
    GuardMiss,
    NothingToExplain,
)
from dovetail.execute.step import CompiledStepProgram, NothingWritten
from dovetail.frontends.patience import Walks
from dovetail.frontends.statistics import Stats
from dovetail.frontends.step.attempts import Attempts
from dovetail.frontends.step.eager_run import EagerRuns, leads_on
from dovetail.frontends.step.explanation import StepExplanation, explain_variant
from dovetail.frontends.step.guard import NOTHING, UNBOUND, StepCall
from dovetail.frontends.step.left_behind import StateToMake
from dovetail.frontends.step.lifting import Lifting
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.searches import SearchCalled, Searches
from dovetail.frontends.step.variant import StepVariant, bindings_to
from dovetail.frontends.structure import Structure, flatten_call
from dovetail.frontends.variant_cache import VariantCache
from dovetail.ir.program import Program
from dovetail.ir.text import identifier
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.doors import COMPILE_STEP
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, resolve_options
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.modes import function_mode_is_active
from dovetail.torch_compat.version import ensure_supported_torch

_Chosen: TypeAlias = tuple[StepVariant, list[torch.Tensor]]

_MOST_ROUNDS = 3  # calls in eager mode, one after the other, that make state for the next one
_ON_UNSUPPORTED = ("raise", "eager")


@overload
def compile_step(step: Callable[..., Any], **options: Any) -> CompiledStep: ...


@overload
def compile_step(step: None = None, **options: Any) -> Callable[[Callable[..., Any]], CompiledStep]: ...


def compile_step(
    step: Callable[..., Any] | None = None, *, state: Any = (), on_unsupported: str = "raise", **options: Any
) -> CompiledStep | Callable[[Callable[..., Any]], CompiledStep]:
    """Compile a training step (forward, loss, backward, clipping, optimizers) into one program.

    Args:
        step: the function, as written for eager mode. It remains usable, and calls of both may be mixed. Without it, a
            decorator is returned.
        state: tensors, modules, optimizers or containers of them that the step writes but that are not within its
            reach.
        on_unsupported: "raise", or "eager": run a step that cannot be captured in eager mode, with one warning.
        options: see `dovetail.pipeline.options`; `keep_grads=False` leaves `.grad` empty after steps that
            begin by clearing it, and needs less memory.

    Returns:
        A callable with the step's arguments and results.

    Raises:
        DovetailError: an option is unknown; or, in a call, the step cannot be captured, in which case nothing has
            changed.
    """
    if step is None:
        return functools.partial(compile_step, state=state, on_unsupported=on_unsupported, **options)
    ensure_supported_torch()
    if on_unsupported not in _ON_UNSUPPORTED:
        expected = " or ".join(map(repr, _ON_UNSUPPORTED))
        raise BadOptionValue(
            option="on_unsupported", value=on_unsupported, reason="it must be one of the choices", expected=expected
        )
    if not _is_callable(step):
        raise BadOptionValue(option="step", value=step, reason="it is called with a batch", expected="a function")
    return CompiledStep(step, state, on_unsupported == "eager", resolve_options(options, PASS_NAMES, COMPILE_STEP))


class CompiledStep:
    """A compiled training step; see `compile_step`."""

    _dovetail_compiled_from = "_step"

    def __init__(self, step: Callable[..., Any], state: Any, falls_back: bool, options: Options) -> None:
        """Compile nothing yet. falls_back: run in eager mode what cannot be captured."""
        self._of_class = isinstance(step, classmethod)
        self._is_method = not isinstance(step, staticmethod)
        self._step = step.__func__ if isinstance(step, classmethod | staticmethod) else step
        self._state = state
        self._falls_back = falls_back
        self._compile_trace = options.compile_trace or CompileTrace()
        self._options = replace(options, compile_trace=self._compile_trace)
        name = identifier(getattr(step, "__name__", type(step).__name__))
        self._cache = VariantCache[StepVariant](name, options.max_variants)
        self._lifting = Lifting()
        self._eager = EagerRuns()
        self._searches: Searches | None = None
        self._attempts = Attempts(self._lifting, self._eager, self._options, name)
        self._missed = self._failed = False
        self._rounds = 0
        self._last_miss: Question | None = None
        self._given_up: DovetailError | None = None
        self._walks = Walks()
        functools.update_wrapper(self, step)

    # --- calling ------------------------------------------------------------------------------------------------

    @not_traced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one training step.

        Raises: what the step raises; StepInterrupted when it fails after it has begun to write.
        """
        if is_part_of_a_step():  # an outer one, whose program holds what this one does
            return self._step(*args, **kwargs)
        cache = self._cache
        cache.counts.calls += 1
        if self._given_up is not None or cache.patience.waits() or _is_looked_at():
            cache.counts.eager_calls += 1
            return self._step(*args, **kwargs)
        if self._searches is not None:
            return self._searches.call(self._step, args, kwargs)
        leaves, structure = flatten_call(args, kwargs)
        if not self._eager.has_watched:
            self._lifting.see(leaves, structure)
            return self._run_eager(args, kwargs)
        tried: list[StepVariant] = []
        while True:
            with RECORDING:
                chosen = self._choose(leaves, structure, tried)
            if chosen is None:
                return self._run_eager(args, kwargs)
            variant, tensors = chosen
            try:
                variant.calls += 1
                results = variant.runner.run(tensors, leaves, variant.guard.bindings)
                cache.patience.found()
                return results
            except GuardMiss as miss:
                self._last_miss = variant.guard.questions[miss.number]
                variant.misses += 1
                cache.counts.guard_misses += 1
                tried.append(variant)
            except NothingWritten:  # eager raises what is to be raised
                return self._run_eager(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A step that is written as a method takes its object as the first argument; programs are for one object."""
        if self._of_class:
            return MethodType(self, type(instance) if owner is None else owner)
        return MethodType(self, instance) if self._is_method and instance is not None else self

    def point_to(self, step: Callable[..., Any]) -> None:
        """Let another function of the same code be the step."""
        if step is not self._step:
            self._step = step
            for variant in self._cache.variants:
                variant.guard.bindings = UNBOUND

    def _run_eager(self, args: Any, kwargs: Any) -> Any:
        """Run the step in eager mode, and note the numbers that it reads off tensors, as hints for captures."""
        if self._searches is not None:
            return self._searches.call(self._step, args, kwargs)
        self._cache.counts.eager_calls += 1
        if self._cache.is_full:
            return self._step(*args, **kwargs)
        try:
            return self._eager.run(self._step, args, kwargs)
        except Exception:
            self._failed = False  # it is the step's own error
            raise

    def _choose(self, leaves: list[Any], structure: Structure, tried: Sequence[StepVariant]) -> _Chosen | None:
        """The variant for a call, captured when there is none; None for eager mode.

        tried: variants whose questions got other answers in this call.
        """
        cache = self._cache
        found = cache.find(leaves, structure, tried)
        if found is not None:
            return found
        cache.counts.misses += not tried
        call = StepCall(self._step, leaves, structure)
        if cache.is_full and not self._may_fit_again(leaves, structure, tried):
            cache.patience.missed()
            cache.warn_of_limit(lambda: self._why(self._reachable(leaves), call, tried), stacklevel=3)
            return None
        reachable = self._reachable(leaves)
        found = self._find_in(reachable, call, tried)
        if cache.is_full:
            self._walks.was(cache.counts.calls, fruitful=found is not None)
        if found is not None:
            return found
        if tried and not self._missed:
            self._missed = True  # it may have been this once
            return None
        self._missed = False
        with replacing() as is_alone:
            return self._capture(reachable, call, tried) if is_alone else None

    def _may_fit_again(self, leaves: Sequence[Any], structure: Structure, tried: Sequence[StepVariant]) -> bool:
        """Whether looking at everything that the step reaches may show that a variant fits."""
        others = [variant for variant in self._cache.variants if variant not in tried]
        return self._walks.may_be(self._cache.counts.calls) and any(
            v.guard.is_kept_by_state(leaves, structure) for v in others
        )

    def _reachable(self, leaves: Sequence[Any]) -> ReachableState:
        return ReachableState(self._step, self._eager.read, filter(leads_on, leaves), self._state)

    def _find_in(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> _Chosen | None:
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
        for variant in self._cache.variants:
            if not held.issuperset(map(id, variant.guard.bindings.tensors)):
                variant.guard.bindings = UNBOUND

    # --- capturing ----------------------------------------------------------------------------------------------

    def _capture(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> _Chosen | None:
        cache = self._cache
        cache.drop_dead()
        reason = self._why(reachable, call, tried)
        if cache.is_full:
            cache.patience.missed()
            cache.warn_of_limit(lambda: reason, stacklevel=4)
            return None
        known = [variant.guard for variant in cache.variants if variant not in tried]
        self._lifting.learn(call.leaves, call.structure, reachable, known)
        start = time.process_time()
        try:
            clears = any(g.is_cleared for v in self._cache.variants for g in v.runner.program.plan.gradients)
            variant = self._attempts.captured(reachable, call, reason, clears)
        except SearchCalled:
            found = [optimizer for _, optimizer in reachable.optimizers]
            self._searches = Searches(found, lambda x: CompiledStep(x, self._state, True, self._options))
            return None
        except StateToMake as making:
            if self._rounds < _MOST_ROUNDS:
                self._rounds += 1
                return None
            self._give_up(making.error)
            return None
        except CaptureFailed as error:  # eager mode raises what is to be raised, or shows that it is our doing
            if not self._failed:
                self._failed = True
                return None
            self._give_up(error)
            return None
        except DovetailError as error:
            self._give_up(error)
            return None
        finally:
            cache.counts.seconds += time.process_time() - start
        self._failed, self._rounds = False, 0
        cache.add(variant)
        self._let_go(reachable)
        return variant, variant.guard.expected(call.leaves)

    def _give_up(self, error: DovetailError) -> None:
        """Raise the error, or run in eager mode from now on."""
        if not self._falls_back:
            error.offer("compile_step(..., on_unsupported='eager')")
            raise error
        self._given_up = error
        text = f"{self._cache.name} runs in eager mode from now on, because it cannot be captured:\n{error}"
        self._cache.warn(text, stacklevel=5)

    def _why(self, reachable: ReachableState, call: StepCall, tried: Sequence[StepVariant]) -> str:
        if tried:
            return f"a check had another outcome: {self._last_miss}"
        return self._cache.why(lambda variant: variant.guard.why(call.leaves, call.structure, reachable))

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The program that ran last, working in place. Raises: NothingToExplain before there is one."""
        return self.compiled.program

    @property
    def compiled(self) -> CompiledStepProgram:
        """What ran last, with what its passes say. Raises: NothingToExplain before there is one."""
        return self._latest().runner.program

    def explain(self) -> StepExplanation:
        """What the program that ran last takes, asks, writes and leaves; print it.

        Raises: NothingToExplain before there is one.
        """
        return explain_variant(self._cache.name, self._latest())

    @property
    def options(self) -> Options:
        """The options that it is compiled with."""
        return self._options

    @property
    def compile_trace(self) -> CompileTrace:
        """What every step of its compilations made; see `dovetail.explain`."""
        return self._compile_trace

    def _latest(self) -> StepVariant:
        if not self._cache.recent:
            hint = "call it twice: the first call runs in eager mode, the second one captures"
            raise NothingToExplain(what=self._cache.name, reason="nothing was captured yet", hint=hint)
        return self._cache.recent[0]

    @property
    def stats(self) -> Stats:
        """What happened so far; of a step that calls LBFGS, with the programs of its closures."""
        inner = [] if self._searches is None else [closure.stats for closure in self._searches.closures]
        own = self._cache.stats
        return replace(
            own,
            captures=own.captures + sum(x.captures for x in inner),
            variants=(*own.variants, *(variant for stats in inner for variant in stats.variants)),
            seconds=own.seconds + sum(x.seconds for x in inner),
        )


def _is_callable(step: object) -> bool:
    """Whether something can be called; a class method can, once its class is there."""
    return callable(step) or isinstance(step, classmethod)


def _is_looked_at() -> bool:
    """Whether something around the call changes what operators do, or looks at each of them."""
    return transform_is_active() or function_mode_is_active() or torch.is_anomaly_enabled()
