"""`dovetail.compile_step(step)`: a whole training step, the user's own code, as one program.

The first call captures, on fakes: what optimizers and lazy modules make in it is made before its program runs, or by
that program, and later calls find it there. From then on each call runs an existing program whose guards hold, or
captures another one: see docs/decisions/0018-the-first-call-runs-a-program.md, and docs/training-step.md.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, Self, overload

import torch

from dovetail.capture.exclusive import RECORDING, RUNNING, is_part_of_a_step
from dovetail.errors import (
    BadOptionValue,
    CollectiveFailed,
    CollectivesDiffer,
    GuardMiss,
    NothingToExplain,
    OffloadFailed,
    OffloadUnavailable,
    RankFailed,
)
from dovetail.execute.agreement import Agreement, OthersUseMore
from dovetail.execute.step import CompiledStepProgram, NothingWritten
from dovetail.frontends.argument_objects import ObjectSeen
from dovetail.frontends.copies import reduced
from dovetail.frontends.statistics import Stats
from dovetail.frontends.step.captures import StepCaptures
from dovetail.frontends.step.explanation import StepExplanation, explain_variant
from dovetail.frontends.step.guard import UNBOUND, StepCall
from dovetail.frontends.step.many_steps import Progress, run_steps
from dovetail.frontends.step.passed import pass_objects
from dovetail.frontends.step.searches import Searches
from dovetail.frontends.step.variant import Chosen, StepVariant
from dovetail.frontends.structure import Classes, classes_in, flatten_call
from dovetail.frontends.variant_cache import VariantCache
from dovetail.ir.program import Program
from dovetail.ir.text import identifier
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.doors import COMPILE_STEP
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, resolve_options
from dovetail.reach.values import PLAIN
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.modes import function_mode_is_active
from dovetail.torch_compat.swapping import HeldWeakly
from dovetail.torch_compat.version import ensure_supported_torch

_RUNNING_ON = contextlib.nullcontext()
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
            reach; or an iterator over these, such as `model.parameters()`.
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
    state = tuple(state) if isinstance(state, Iterator) else state
    if type(state) in PLAIN:
        reason = "it says what a step writes that is not within its reach"
        raise BadOptionValue(option="state", value=state, reason=reason, expected="tensors, modules or optimizers")
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
        self._compile_trace = options.compile_trace or CompileTrace()
        self._options = replace(options, compile_trace=self._compile_trace)
        name = identifier(getattr(step, "__name__", type(step).__name__))
        self._cache = VariantCache[StepVariant](name, options.max_variants)
        self._captures = StepCaptures(self._cache, state, falls_back, self._options)
        self._searches: Searches | None = None
        self._classes = Classes()
        self._turn, self._in_eager_mode = threading.RLock(), set[object]()
        functools.update_wrapper(self, step)

    # --- calling ------------------------------------------------------------------------------------------------

    @not_traced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one training step.

        Raises: what the step raises; StepInterrupted when it fails after it has begun to write.
        """
        if is_part_of_a_step():  # an outer one, whose program holds what this one does
            return self._step(*args, **kwargs)
        self._cache.counts.calls += 1
        with self._captures.sharded:
            return self._called(args, kwargs)

    @not_traced
    def _called(self, args: Any, kwargs: Any) -> Any:
        cache, agreement = self._cache, Agreement()
        try:
            if self._captures.given_up is not None or cache.patience.waits() or _is_looked_at():
                cache.counts.eager_calls += 1
                with agreement.of_eager_mode():
                    return self._step(*args, **kwargs)
            if self._searches is not None:
                return self._searches.call(self._step, args, kwargs)
            with _Turn(self._turn, self._captures.passed.clear) as turn, RUNNING:
                ran = self._run_program(args, kwargs, agreement, turn)
            return self._run_eager(args, kwargs, agreement) if ran is None else ran.results
        except BaseException as error:
            agreement.raised(error)
            raise

    def _run_program(self, args: Any, kwargs: Any, agreement: Agreement, turn: _Turn) -> _Ran | None:
        """Find a program for a call, or capture one, and run it; None for eager mode."""
        cache, captures = self._cache, self._captures
        call = StepCall(self._step, *flatten_call(args, kwargs, self._classes))
        captures.begin(call)
        tried: list[StepVariant] = []
        while True:
            try:
                chosen = self._chosen(call, tried)
            except ObjectSeen as seen:  # objects of these classes are state from now on
                self._classes.close(seen.kinds or classes_in(call.structure), dataclasses=True)
                return self._run_program(args, kwargs, agreement, turn)
            if chosen is None:
                return None
            variant, tensors = chosen
            program = variant.runner.program
            if not variant.runner.takes_turns:
                turn.end()
            try:
                variant.calls += 1
                sequences = program.collectives, program.used_parameters, program.eager_collectives
                with (
                    agreement.of_program(*sequences, program.groups_of_messages),
                    RUNNING.suspended() if program.meets_others else _RUNNING_ON,
                ):
                    results = variant.runner.run(tensors, call.leaves, variant.guard.bindings)
                captures.ran(variant)
                cache.fitted(variant)
                return _Ran(results)
            except GuardMiss as miss:
                captures.did_not_run()
                captures.missed(variant, miss)
                tried.append(variant)
                with RUNNING.suspended():  # whoever's turn it is may wait until this thread runs nothing
                    turn.begin()
            except NothingWritten as error:  # eager raises what is to be raised
                captures.did_not_run(str(error.__cause__) if isinstance(error.__cause__, OthersUseMore) else "")
                return None
            except (OffloadFailed, OffloadUnavailable, CollectivesDiffer, CollectiveFailed, RankFailed):
                captures.did_not_run()
                raise

    def _chosen(self, call: StepCall, tried: list[StepVariant]) -> Chosen | None:
        """The program for a call, captured when there is none; None for eager mode."""
        pass_objects(self._captures.passed, call.leaves)
        with RECORDING:
            found = self._cache.find(call.leaves, call.structure, tried)
        if found is not None:
            return found
        with RUNNING.alone() as is_alone:
            if not is_alone or self._in_eager_mode:
                self._captures.did_not_run("another thread runs it meanwhile")
                return None
            with RECORDING:
                try:
                    return self._captures.chosen(call, tried)
                except HeldWeakly as error:
                    self._captures.did_not_run(str(error))
                    name = self._cache.name
                    self._cache.warn(f"{name} runs in eager mode for now, because {error}")
                    return None

    def run(self, batches: Any, progress: Progress | None = None, *, every: int = 1) -> Any:
        """Run a step for each batch, and stack the results: what as many calls give, bit by bit.

        Ctrl-C, and errors, end the run between two steps: what the last whole step left is there.

        Args:
            batches: an iterable, a `DataLoader` say: tuples and lists are a step's arguments, dicts its keywords, and
                anything else its one argument. Or tensors whose first dimension counts the steps: one, a tuple of
                them for several arguments, or a dict for keywords.
            progress: called with the number of steps that are done and the last result.
            every: after how many steps it is called.

        Returns:
            A step's result with each tensor of shape `(...)` stacked to `(steps, ...)`, without a gradient; numbers
            and other values are in lists, and so are tensors whose shapes differ. None if there was no batch.

        Raises:
            BadOptionValue: what is given are no batches, or no progress; nothing has run.
            DovetailError: as a call does, from the step that raises it. A note says how many steps are done.
        """
        return run_steps(self, batches, progress, every)

    def _run_eager(self, args: Any, kwargs: Any, agreement: Agreement) -> Any:
        me = object()
        if self._captures.searching is None:
            self._in_eager_mode.add(me)  # while it is there, other threads do not record
            try:
                with agreement.of_eager_mode():
                    return self._captures.run_eager(self._step, args, kwargs)
            finally:
                self._in_eager_mode.discard(me)
        state, options = self._state, self._options  # the searches must not hold this step, which holds them
        self._searches = Searches(self._captures.searching, lambda closure: CompiledStep(closure, state, True, options))
        return self._searches.call(self._step, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A step that is written as a method takes its object as the first argument; programs are for one object."""
        if self._of_class:
            return MethodType(self, type(instance) if owner is None else owner)
        return MethodType(self, instance) if self._is_method and instance is not None else self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledStep:
        """A step of its own: nothing is captured yet. Functions are what they are; objects of methods are copied."""
        step, state = copy.deepcopy((self._step, self._state), memo)
        return CompiledStep(self._as_given(step), state, self._captures.falls_back, self._uncompiled())

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        given = self._as_given(self._step), self._state, self._captures.falls_back, self._uncompiled()
        return reduced(self, self._step, CompiledStep, *given)

    def _as_given(self, step: Callable[..., Any]) -> Any:
        if self._of_class:
            return classmethod(step)
        return step if self._is_method else staticmethod(step)

    def _uncompiled(self) -> Options:
        return replace(self._options, compile_trace=None)

    def point_to(self, step: Callable[..., Any]) -> None:
        """Let another function of the same code be the step."""
        if step is not self._step:
            self._step = step
            for variant in self._cache.variants:
                variant.guard.bindings = UNBOUND

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
        return explain_variant(self._cache.name, self._latest(), self.stats.eager_reasons)

    @property
    def step(self) -> Callable[..., Any]:
        """The function that is compiled."""
        return self._step

    @property
    def state(self) -> Any:
        """What the step writes beyond its reach; see `compile_step`."""
        return self._state

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
            hint = "call it: a call captures; `.stats` has why calls ran in eager mode, if they did"
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


@dataclass(frozen=True, slots=True)
class _Ran:
    results: Any


class _Turn:
    """The turn of a thread to call a step: others wait while it finds a program, and while one runs that writes."""

    __slots__ = ("_at_end", "_is_held", "_lock")

    def __init__(self, lock: threading.RLock, at_end: Callable[[], None]) -> None:
        """at_end: what is done before others go on."""
        self._lock, self._at_end, self._is_held = lock, at_end, False

    def begin(self) -> None:
        """Wait for the turn, unless it is this thread's by now."""
        if not self._is_held:
            self._lock.acquire()
            self._is_held = True

    def end(self) -> None:
        """Let other threads go on."""
        if self._is_held:
            self._is_held = False
            self._at_end()
            self._lock.release()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _is_callable(step: object) -> bool:
    """Whether something can be called; a class method can, once its class is there."""
    return callable(step) or isinstance(step, classmethod)


def _is_looked_at() -> bool:
    """Whether something around the call changes what operators do, or looks at each of them."""
    return transform_is_active() or function_mode_is_active() or torch.is_anomaly_enabled()
