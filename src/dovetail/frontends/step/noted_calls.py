"""Calls that were noted while a step was recorded, and that each run makes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.kept import Handed, NotMadeAgain, Tree, Trees, grown
from dovetail.frontends.step.write_only import Put
from dovetail.frontends.structure import Structure, unflatten
from dovetail.ir.calling import FromConstant
from dovetail.ir.program import Origin
from dovetail.torch_compat.optimizers import without_warning_of_order


@dataclass(frozen=True, slots=True)
class HostCall:
    """One call.

    arguments: how each of them is made of the values that the program leaves, flat. position: how many nodes had been
    recorded. scheduler: what is stepped, if it is one; at: where it lies. is_hook: whether it may look at the state.
    before: whether it is made before the program. is_due: whether the scheduler's optimizer had stepped by then.
    is_users: whether the user has marked the function. is_once: whether only the first run makes it, see `told_once`.
    number: its place among the calls of the recording.
    """

    function: Callable[..., Any]
    arguments: tuple[Tree, ...]
    structure: Structure
    position: int
    origin: Origin
    scheduler: Any = None
    is_hook: bool = False
    before: bool = False
    is_due: bool = False
    is_users: bool = False
    is_once: bool = False
    at: Path | None = None
    number: int = -1

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{name} at {self.origin}" + (" (before the program)" if self.before else "")

    @property
    def needs_nothing(self) -> bool:
        """Whether it is made after a program, is given nothing that this leaves, and looks at nothing of it."""
        looks = self.before or self.is_hook or self.scheduler is not None or isinstance(self.function, Put)
        return not looks and all(isinstance(argument, FromConstant) for argument in self.arguments)

    def make(self, run: Handed, scheduler: Any = None) -> None:
        """Call. run: what the program has left. scheduler: what is stepped, where it is another one by now."""
        args, kwargs = unflatten([grown(argument, run) for argument in self.arguments], self.structure)
        function = self.function if scheduler is None or scheduler is self.scheduler else scheduler.step
        function(*args, **kwargs)

    def make_first(self, scheduler: Any) -> None:
        """Step a scheduler before the program, in which its optimizer may step for the first time."""
        with without_warning_of_order(scheduler) if self.is_due else contextlib.nullcontext():
            self.make(Handed(), scheduler)

    def placed(self, trees: Trees) -> tuple[Tree, ...]:
        """The arguments: what was there before by where it lies, objects that the step makes by what they are made of.

        Raises: UnsupportedStep.
        """
        try:
            return tuple(trees.handed(x.value) if isinstance(x, FromConstant) else x for x in self.arguments)
        except NotMadeAgain:
            raise UnsupportedStep(
                what="gives an object to code that is called after the program, and no run makes or finds another one",
                why="a later call may have another one in its place",
                hint="give it tensors and numbers, in containers; or hold it in an attribute, a list or a dictionary",
                origin=self.origin,
            ) from None


class LogAgain:
    """Hands a log record on, with real numbers in place of traced ones."""

    def __init__(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        self._logger = logger
        self._record = record
        self._is_tuple = isinstance(record.args, tuple)

    def __call__(self, message: Any, *args: Any) -> None:
        facts = {**vars(self._record), "msg": message, "args": args if self._is_tuple else args[0]}
        self._logger.handle(logging.makeLogRecord(facts))
