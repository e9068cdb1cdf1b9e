"""Calls of a step that cannot be part of a program: schedulers, printing, logging, functions that the user names.

While a step is recorded they are noted, not made. Each run of the program makes them, in order, with
the values that the step passes. They are made after the program, with copies of the tensors they were given; a
scheduler whose numbers the step reads later on is called before the program instead (`late_numbers`), and undone if the
program turns out to be the wrong one.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import torch

from dovetail.capture.drawn_arrays import is_drawn
from dovetail.capture.step_recording import StepRecording
from dovetail.capture.step_text_results import text_result
from dovetail.capture.warned import warnings_noted
from dovetail.errors import BadOptionValue, StateChangedOtherwise, UnsupportedStep
from dovetail.frontends.step.containers import are_one_by_one
from dovetail.frontends.step.kept import NotMadeAgain, Tree, Trees
from dovetail.frontends.step.late_numbers import LateNumbers
from dovetail.frontends.step.noted_calls import HostCall, LogAgain
from dovetail.frontends.step.output import print_to, replaced_builtin, replaced_handling, streams_replaced
from dovetail.frontends.step.schedulers import watched_reads
from dovetail.frontends.step.trackers import trackers_replaced
from dovetail.frontends.step.write_only import Put
from dovetail.frontends.structure import Structure, flatten, flatten_made
from dovetail.ir.calling import FromConstant, FromLeft, WithLook
from dovetail.ir.program import Value
from dovetail.reach.frames import unnoted
from dovetail.reach.remembered import callers, is_remembered
from dovetail.reach.values import HOST_CALL
from dovetail.torch_compat.modules import noticed_conversions
from dovetail.torch_compat.optimizers import (
    global_step_hook_tables,
    has_stepped,
    step_hook_tables,
)
from dovetail.torch_compat.traced_numbers import handle_of, is_traced


def host_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that compiled steps call in Python after each run, with the values of that run.

    The function receives copies of tensors, plain numbers for traced numbers, and everything else unchanged. In the
    step the call returns None. Outside a compiled step the function is called normally. See docs/training-step.md.

    Raises: BadOptionValue where it is no function.
    """
    if not callable(function):
        raise BadOptionValue(option="function", value=function, reason="it is called", expected="a function")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        recording = _ACTIVE[-1] if _ACTIVE else None
        if recording is None:
            with unnoted():
                function(*args, **kwargs)
        else:
            recording.note_users(function, args, kwargs)

    setattr(call, HOST_CALL, True)
    return call


_ACTIVE: list[HostCalls] = []


class HostCalls:
    """Notes the host calls of one recording, in this thread."""

    def __init__(
        self,
        recording: StepRecording,
        schedulers: Sequence[Any],
        optimizers: Sequence[torch.optim.Optimizer],
        late: LateNumbers,
        told_once: Callable[[HostCall, int], None],
        is_known: Callable[[Any], bool],
        *,
        is_noting_hooks: bool = False,
    ) -> None:
        """late: numbers that schedulers change. look_at, to be set: gets arguments of calls. told_once: gets calls that
        no other recording notes, and how many came before that all do. is_known: whether an object was there before.

        is_noting_hooks: hooks of optimizers are host calls; else they are recorded like the rest of the step."""
        self.calls: list[HostCall] = []
        self.calls_search = False
        self.look_at: Callable[[Sequence[Any]], None] = lambda _: None
        self._late = late
        self._is_known = is_known
        self._unknown: list[Any] = []
        self._whole: dict[int, tuple[tuple[Tree, ...], Structure, list[tuple[Any, list[Any]]]]] = {}
        self._told_once = told_once
        self._outside = frozenset[FrameType]()
        self._optimizers = optimizers
        self._is_noting_hooks = is_noting_hooks
        self._thread = threading.get_ident()
        self._recording = recording
        self._schedulers = schedulers

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While active, host calls are noted and not made."""
        with contextlib.ExitStack() as stack:
            for scheduler in self._schedulers:
                stub = self._stub(scheduler)
                stack.enter_context(_replaced(scheduler, stub))
                stack.enter_context(watched_reads(scheduler, self._read))
            for optimizer in self._optimizers:
                if isinstance(optimizer, torch.optim.LBFGS):
                    stack.enter_context(_replaced(optimizer, self._refuse_search))
            if self._is_noting_hooks:
                for tables in (*map(step_hook_tables, self._optimizers), global_step_hook_tables()):
                    for table in tables:
                        stack.enter_context(_replaced_values(table, self._hook))
            stack.enter_context(noticed_conversions(self._refuse_conversion))
            stack.enter_context(streams_replaced(self.note))
            stack.enter_context(replaced_builtin("print", self._print(builtins.print, sys.stdout)))
            stack.enter_context(replaced_handling(self._log))
            stack.enter_context(trackers_replaced(self.note))
            stack.enter_context(warnings_noted(lambda warned, message: self.note(warned, (message,), {})))
            _ACTIVE.append(self)
            self._outside = frozenset(callers(sys._getframe()))
            try:
                yield
            finally:
                self._outside = frozenset()
                _ACTIVE.pop()

    def note(
        self, function: Callable[..., Any], args: Any, kwargs: Any, scheduler: Any = None, *, is_hook: bool = False
    ) -> None:
        """A call was to be made."""
        leaves, structure = flatten_made((list(args), dict(kwargs)))
        self.look_at(leaves)
        recorder, arguments = self._recording.recorder, tuple(map(self._argument, leaves))
        recorder.texts.given_to_host()
        position, here = len(recorder.nodes), self._recording.origins.here()
        is_due = scheduler is not None and has_stepped(scheduler.optimizer)
        call = HostCall(function, arguments, structure, position, here, scheduler, is_hook, is_due=is_due)
        call = replace(call, number=len(self.calls))
        if call.needs_nothing and is_remembered(sys._getframe(1), self._outside):
            call = replace(call, is_once=True)
            self._told_once(call, sum(not other.is_once for other in self.calls))
        self.calls.append(call)

    def note_users(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """A call of a function that the user has marked was to be made."""
        self.note(function, args, kwargs)
        self.calls[-1] = replace(self.calls[-1], is_users=True)
        met: list[tuple[Any, list[Any]]] = []
        leaves, structure = flatten_made((list(args), dict(kwargs)), partial(self._is_handed_whole, met=met))
        if met:
            self._whole[len(self.calls) - 1] = tuple(map(self._argument, leaves)), structure, met

    def note_put(self, put: Put) -> None:
        """Something was to be put into a container, in order with the calls."""
        self._recording.recorder.texts.given_to_host()
        position, here = len(self._recording.recorder.nodes), self._recording.origins.here()
        self.calls.append(HostCall(put, (), flatten(())[1], position, here))

    def settle(self, trees: Trees) -> None:
        """The step has ended. Raises: StateChangedOtherwise for something that no run makes again."""
        trees.unknown += self._unknown
        for number, (arguments, structure, met) in self._whole.items():
            if all(
                are_one_by_one(flatten(item)[0], held) for item, held in met
            ):  # at its end they hold what they held then
                self.calls[number] = replace(self.calls[number], arguments=arguments, structure=structure)
        for number, call in enumerate(self.calls):
            placed, at = call.placed(trees), trees.place_of(call.scheduler)
            if placed != call.arguments or at is not None:
                self.calls[number] = replace(call, arguments=placed, at=at)
            if isinstance(call.function, Put):
                try:
                    call.function.settle(trees)
                except NotMadeAgain:
                    raise StateChangedOtherwise(
                        what="puts an object that it makes into a container",
                        why="a program makes tensors, numbers, texts and containers of these",
                        hint="do it in a function marked with dovetail.host_call",
                        origin=call.origin,
                    ) from None

    def _is_handed_whole(self, item: Any, met: list[tuple[Any, list[Any]]]) -> bool:
        """Whether a function may get the very container that was there before, without tensors. met: gets those."""
        if isinstance(item, torch.Tensor | tuple):
            return False
        if not self._is_known(item):
            self._unknown += [item] if type(item) in (list, dict) or is_dataclass(item) else []
            return False
        held = flatten(item)[0]
        is_whole = not any(isinstance(x, torch.Tensor) for x in held)
        if is_whole:
            met.append((item, held))
        return is_whole

    def _argument(self, leaf: Any) -> Tree:
        """What makes an argument of what the program leaves."""
        recording = self._recording
        if is_drawn(leaf):
            leaf.trace.refuse("gives an array that it draws to code that is called after the program")
        if isinstance(leaf, torch.Tensor):
            seen = recording.seen(leaf)
            return WithLook(FromLeft(recording.leave(seen.value)), seen.look)
        if is_traced(leaf):
            return FromLeft(recording.leave(handle_of(leaf)))
        return text_result(recording.recorder, recording.leave, leaf) or FromConstant(leaf)

    def _print(self, function: Callable[..., Any], output: Any) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            if threading.get_ident() != self._thread:
                function(*args, **kwargs)
                return
            if sys.stdout is not output and kwargs.get("file") is None:
                raise UnsupportedStep(
                    what="prints to another place than its caller does (`contextlib.redirect_stdout`)",
                    why="prints are made after the program, and where they went to may be gone",
                    hint="redirect the output around the step, or pass print(..., file=...)",
                    origin=self._recording.origins.here(),
                )
            self.note(print_to, (function, kwargs.pop("file", None), *args), kwargs)

        return call

    def _stub(self, scheduler: Any) -> Callable[..., None]:
        step = scheduler.step

        def call(*args: Any, **kwargs: Any) -> None:
            self.note(step, args, kwargs, scheduler)
            self._late.read_after(scheduler, len(self.calls) - 1)

        return call

    def _hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return hook(*args, **kwargs)
            self.note(hook, args, kwargs, is_hook=True)
            return None

        return call

    def _read(self, scheduler: Any, name: str, asked: str) -> Any:
        """The step asks a scheduler for something. Raises: UnsupportedStep, also when the step swallows it.

        asked: what the step has asked for, a method that asks for `name` or that attribute itself.
        """
        rates = self._late.last_rates(scheduler) if name == "_last_lr" else None
        if rates is not None:
            return rates
        error = UnsupportedStep(
            what=f"reads {asked!r} of a {type(scheduler).__mro__[1].__name__}",
            why="schedulers change when they are stepped, and the program would keep using the captured values",
            hint="read it after the step",
            origin=self._recording.origins.here(),
        )
        self._recording.recorder.refusals.append(error)
        raise error

    def _refuse_conversion(self, module: torch.nn.Module) -> None:
        if threading.get_ident() == self._thread:
            raise StateChangedOtherwise(
                what=f"moves a {type(module).__name__} to another dtype or device",
                why="the program uses the memory that tensors had when it was recorded",
                hint="move the module (net.to(...)) before the step",
                origin=self._recording.origins.here(),
            )

    def _refuse_search(self, *_: Any, **__: Any) -> None:
        self.calls_search = True
        raise UnsupportedStep(
            what="calls LBFGS, which calls the closure a number of times that depends on the loss",
            why="the number of forward and backward passes differs in each search",
            hint="compile the closure and leave the search in eager mode: closure = dovetail.compile_step(closure, "
            "keep_grads=True), with net.zero_grad() in it, then optimizer.step(closure)",
            origin=self._recording.origins.here(),
        )

    def _log(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Note a log record of this thread; False for those of others."""
        if threading.get_ident() != self._thread:
            return False
        leaves = record.args if isinstance(record.args, tuple) else (record.args,)
        self.note(LogAgain(logger, record), (record.msg, *leaves), {})
        return True

    # --- when they are made ---------------------------------------------------------------------------------

    def placed(self, tensors_of: Callable[[Any], set[Value]], used: Collection[Value]) -> tuple[HostCall, ...]:
        """The calls, each to be made before or after the program.

        tensors_of: the inputs that a scheduler may change. used: inputs of the program. Raises: UnsupportedStep where
        neither is what eager does.
        """
        found = []
        nodes, first = self._recording.recorder.nodes, self._late.wanted(used)
        for number, call in enumerate(self.calls):
            if call.is_hook and any(map(self._recording.writes_state, nodes[call.position :])):
                raise UnsupportedStep(
                    what="runs a hook of an optimizer before the last write to its state",
                    why="hooks are called after the program: this one would see later updates than in eager mode",
                    hint="call it at the end of the step",
                    origin=call.origin,
                )
            if call.scheduler is None:
                found.append(call)
                continue
            changed = tensors_of(call.scheduler)
            earlier = any(not changed.isdisjoint(node.operands()) for node in nodes[: call.position])
            later = any(not changed.isdisjoint(node.operands()) for node in nodes[call.position :])
            before = later or number < first
            if before and (earlier or not self._may_be_first(number, call)):
                raise UnsupportedStep(
                    what="calls a scheduler between two uses of what it changes",
                    why="a scheduler is called before the program or after it: not with what the program computes, nor "
                    "between two writes, two reads of a tensor, or after other functions that may read the numbers",
                    hint="read what it changes after the step, or step the scheduler outside",
                    origin=call.origin,
                )
            found.append(replace(call, before=before))
        return tuple(found)

    def _may_be_first(self, number: int, call: HostCall) -> bool:
        """Whether a scheduler's call, by its number, can be made before the program."""
        is_written = number in self._late.written
        reads = any(x.is_hook or x.is_users for x in self.calls[:number])
        return not (is_written or reads) and all(isinstance(x, FromConstant) for x in call.arguments)


@contextlib.contextmanager
def _replaced(stepped: Any, step: Callable[..., None]) -> Iterator[None]:
    """While active, stepping a scheduler, or an optimizer, calls something else."""
    held = stepped.__dict__
    had, before = "step" in held, held.get("step")
    held["step"] = step
    try:
        yield
    finally:
        if had:
            held["step"] = before
        else:
            del held["step"]


@contextlib.contextmanager
def _replaced_values(table: dict[int, Any], instead: Callable[[Any], Any]) -> Iterator[None]:
    """While active, a table has something else in the place of each value."""
    before = dict(table)
    for key, value in before.items():
        table[key] = instead(value)
    try:
        yield
    finally:
        table.update(before)
