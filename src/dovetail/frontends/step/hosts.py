"""Calls that a step makes and that no program can hold: schedulers, printing, logging, functions that the user names.

While a step is recorded they are noted and not made. Each run of the program makes them for real, in their order, with
the values that the step gives them. They are made after the program, with copies of the tensors they were given; a
scheduler whose numbers the step reads later on is called before the program instead, and taken back if the program
turns out to be the wrong one.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.errors import UnsupportedStep
from dovetail.frontends.structure import Structure, flatten, unflatten
from dovetail.ir.program import Origin, Value
from dovetail.torch_compat.optimizers import step_hook_tables
from dovetail.torch_compat.traced_numbers import handle_of, is_traced

_MARK = "_dovetail_host_call"


def host_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as one that compiled steps call for real, after each run, with the values they give it.

    The function gets copies of tensors, plain numbers for numbers, and everything else as it is. Its result is not
    given to the step: there it returns None. Outside of a compiled step it is called as it is. See
    docs/training-step.md.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        recording = _ACTIVE[-1] if _ACTIVE else None
        if recording is None:
            function(*args, **kwargs)
        else:
            recording.note(function, args, kwargs)

    setattr(call, _MARK, True)
    return call


_ACTIVE: list[HostCalls] = []


@dataclass(frozen=True, slots=True)
class HostCall:
    """One call. leaves: its arguments, flat; those that the program makes are numbers of what it leaves.

    made: for each leaf, which value that the program leaves it is, None for a plain one. position: how many nodes had
    been recorded. scheduler: what is stepped, if it is one. is_hook: whether it may look at the state. before: whether
    it is made before the program.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    made: tuple[int | None, ...]
    structure: Structure
    position: int
    origin: Origin
    scheduler: Any = None
    is_hook: bool = False
    before: bool = False

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{name} at {self.origin}" + (" (before the program)" if self.before else "")

    def make(self, values: Sequence[Any]) -> None:
        """Call. values: what the program has left for host calls."""
        given: list[Any] = [
            leaf if which is None else values[which] for leaf, which in zip(self.leaves, self.made, strict=True)
        ]
        args, kwargs = unflatten(given, self.structure)
        self.function(*args, **kwargs)


class HostCalls:
    """Notes the host calls of one recording, in this thread."""

    def __init__(
        self, recording: StepRecording, schedulers: Sequence[Any], hooked: Sequence[torch.optim.Optimizer] = ()
    ) -> None:
        """hooked: optimizers whose hooks are host calls; those of others are recorded like the rest of the step."""
        self.calls: list[HostCall] = []
        self._hooked = hooked
        self._thread = threading.get_ident()
        self._recording = recording
        self._schedulers = schedulers

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While active, host calls are noted and not made."""
        with contextlib.ExitStack() as stack:
            for scheduler in self._schedulers:
                stack.enter_context(_replaced(scheduler, self._stub(scheduler)))
            for optimizer in self._hooked:
                for table in step_hook_tables(optimizer):
                    stack.enter_context(_replaced_values(table, self._hook))
            stack.enter_context(_replaced_builtin("print", self._of(builtins.print)))
            stack.enter_context(_replaced_handling(self._log))
            _ACTIVE.append(self)
            try:
                yield
            finally:
                _ACTIVE.pop()

    def note(
        self, function: Callable[..., Any], args: Any, kwargs: Any, scheduler: Any = None, *, is_hook: bool = False
    ) -> None:
        """A call was to be made."""
        leaves, structure = flatten((list(args), dict(kwargs)))
        recorder, made = self._recording.recorder, list[int | None]()
        for leaf in leaves:
            made.append(None)
            if isinstance(leaf, torch.Tensor):
                with torch.no_grad():
                    made[-1] = self._recording.leave(recorder.value_of(leaf.detach().clone()))
            elif is_traced(leaf):
                made[-1] = self._recording.leave(handle_of(leaf))
        plain = tuple(leaf if which is None else None for leaf, which in zip(leaves, made, strict=True))
        origin = self._recording.origins.here()
        self.calls.append(
            HostCall(function, plain, tuple(made), structure, len(recorder.nodes), origin, scheduler, is_hook)
        )

    def _of(self, function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == self._thread:
                self.note(function, args, kwargs)
            else:
                function(*args, **kwargs)

        return call

    def _stub(self, scheduler: Any) -> Callable[..., None]:
        step = scheduler.step

        def call(*args: Any, **kwargs: Any) -> None:
            self.note(step, args, kwargs, scheduler)

        return call

    def _hook(self, hook: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            self.note(hook, args, kwargs, is_hook=True)

        return call

    def _log(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Note a log record of this thread; False for those of others."""
        if threading.get_ident() != self._thread:
            return False
        leaves = record.args if isinstance(record.args, tuple) else (record.args,)
        self.note(_Log(logger, record), leaves, {})
        return True

    # --- when they are made ---------------------------------------------------------------------------------

    def placed(self, numbers_of: Callable[[Any], set[Value]]) -> tuple[HostCall, ...]:
        """The calls, each to be made before or after the program.

        numbers_of: the inputs that a scheduler may change. Raises: UnsupportedStep where neither is what eager does.
        """
        found = []
        for call in self.calls:
            nodes = self._recording.recorder.nodes
            if call.is_hook and any(map(self._recording.writes_state, nodes[call.position :])):
                raise UnsupportedStep(
                    what="runs a hook of an optimizer before the last write to its state",
                    why="hooks are called after the program, and this one would find what eager mode has not made yet",
                    hint="call it at the end of the step",
                    origin=call.origin,
                )
            if call.scheduler is None:
                found.append(call)
                continue
            changed = numbers_of(call.scheduler)
            earlier = any(not changed.isdisjoint(node.operands()) for node in nodes[: call.position])
            later = any(not changed.isdisjoint(node.operands()) for node in nodes[call.position :])
            if later and (earlier or any(which is not None for which in call.made)):
                raise UnsupportedStep(
                    what="calls a scheduler between two uses of the numbers that it changes",
                    why="the program reads them once, when it begins",
                    hint="call the scheduler at the end of the step",
                    origin=call.origin,
                )
            found.append(replace(call, before=later))
        return tuple(found)


class _Log:
    """Hands a log record on, with real numbers in place of traced ones."""

    def __init__(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        self._logger = logger
        self._record = record
        self._is_tuple = isinstance(record.args, tuple)

    def __call__(self, *args: Any) -> None:
        facts = {**vars(self._record), "args": args if self._is_tuple else args[0]}
        self._logger.handle(logging.makeLogRecord(facts))


@contextlib.contextmanager
def _replaced(scheduler: Any, step: Callable[..., None]) -> Iterator[None]:
    """While active, stepping a scheduler calls something else."""
    held = scheduler.__dict__
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


@contextlib.contextmanager
def _replaced_builtin(name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(builtins, name)
    setattr(builtins, name, function)
    try:
        yield
    finally:
        setattr(builtins, name, before)


@contextlib.contextmanager
def _replaced_handling(log: Callable[[logging.Logger, logging.LogRecord], bool]) -> Iterator[None]:
    """While active, log records go elsewhere; dovetail's own and torch's do not."""
    before = logging.Logger.handle

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        is_own = logger.name.partition(".")[0] in ("dovetail", "torch")
        if is_own or not log(logger, record):
            before(logger, record)

    put: Any = logging.Logger
    put.handle = handle
    try:
        yield
    finally:
        put.handle = before


class SchedulerState:
    """What schedulers and the groups of their optimizers hold, to be put back."""

    def __init__(self, schedulers: Sequence[Any]) -> None:
        """Remember what these hold now."""
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._seen: set[int] = set()
        for scheduler in schedulers:
            self._add(scheduler)

    def _add(self, scheduler: Any) -> None:
        if id(scheduler) in self._seen:
            return
        self._seen.add(id(scheduler))
        self._held.append((scheduler.__dict__, dict(scheduler.__dict__)))
        for value in scheduler.__dict__.values():
            if isinstance(value, list):
                self._lists.append((value, list(value)))
                for item in value:
                    if hasattr(item, "step") and hasattr(item, "last_epoch"):
                        self._add(item)
        for group in getattr(getattr(scheduler, "optimizer", None), "param_groups", ()):
            self._held.append((group, dict(group)))
            self._tensors += [(v, v.detach().clone()) for k, v in group.items() if isinstance(v, torch.Tensor)]

    def put_back(self) -> None:
        """Hold again what was held."""
        for held, before in self._held:
            held.clear()
            held.update(before)
        for items, former in self._lists:
            items[:] = former
        with torch.no_grad():
            for tensor, numbers in self._tensors:
                tensor.copy_(numbers)
