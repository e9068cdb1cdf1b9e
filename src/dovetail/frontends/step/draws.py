"""Random numbers that a step draws from Python and NumPy: each call draws them for real, in order, before the program.

While the step is recorded, functions that draw are noted; the numbers that they give are inputs of the program, and so
are tensors made of arrays that they give. Where code needs the drawn numbers themselves, the function of the user's
that it is part of is called before each run, as a whole. When a program turns out to be the wrong one, the generators
are put back. Changes of generators otherwise are not noted, and are refused as changes.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import torch

from dovetail.capture.drawn_arrays import DrawnArray
from dovetail.capture.step_questions import Question
from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_recording import StepRecording
from dovetail.errors import UnsupportedStep, WrittenArray
from dovetail.frontends.step.captured_memory import generator_is_set
from dovetail.frontends.step.choices import NO_CHOICE, Choices, Places
from dovetail.frontends.step.containers import Fixed, Path, Slot
from dovetail.frontends.step.drawing_functions import DrawingFunctions, candidates
from dovetail.frontends.step.drawn_values import (
    Draw,
    Drawn,
    Held,
    Ref,
    Source,
    as_number,
    is_same_result,
    kind_of_result,
    part,
)
from dovetail.frontends.step.generators import (
    NAMES,
    SHARED,
    OneFunction,
    StandInGenerator,
    as_it_was,
    source_of,
)
from dovetail.frontends.step.held_arrays import NO_ARRAYS, HeldArrays
from dovetail.frontends.step.numbers_before import NumbersBefore
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.tensors_on_arrays import TensorsOnArrays, from_numpy_or_drawn
from dovetail.frontends.step.waiting_draws import WaitingDraws
from dovetail.ir.program import Value
from dovetail.ops.prims import GUARD_NUMBER
from dovetail.reach.values import PLAIN, is_a, random_state, set_random_state
from dovetail.torch_compat.traced_numbers import fixed_number, handle_of, is_traced

_MOST_IN_LISTS = 256
_NONE: Mapping[str, Path] = {}
_WHOLE = (np.float64, np.int64, np.bool_)


class Draws:
    """Notes the draws of one recording. made: in order. taken: those that give numbers of the program, and late ones.

    tensors: made on the memory of such arrays. wanted: functions of the user's, one of which is to be called as a whole
    before each run, if the recording has failed; useless: those that cannot be.
    """

    def __init__(
        self,
        reachable: ReachableState,
        recording: StepRecording,
        drawing: Sequence[FunctionType] = (),
        *,
        numbers: Mapping[str, Path] = _NONE,
        arrays: HeldArrays = NO_ARRAYS,
        others: WaitingDraws,
    ) -> None:
        """drawing: functions of the user's that are called as a whole before each run. others: what other threads draw.

        numbers: where numbers are held that are inputs, by their names. arrays: that are read before each run.
        """
        self._held_arrays, self._others = arrays, others
        self.wants_arrays = False
        self.made: list[Draw] = []
        self.taken: list[Any] = []
        self.tensors = TensorsOnArrays(arrays)
        self.wanted: list[FunctionType] = []
        self._real: list[Any] = []
        self.numbers = NumbersBefore(recording.recorder, numbers, self, self._real)
        self._reachable = reachable
        self._recording = recording
        self._thread, self._is_inside = threading.get_ident(), False
        self._held = [(slot, source) for slot, source in reachable.generators if not isinstance(slot.container, Fixed)]
        sources = {id(x): x for x in (random, np.random, *(source for _, source in self._held))}
        self._states = {key: (source, *random_state(source)) for key, source in sources.items()}
        held = {id(source): Source(source, slot.path) for slot, source in self._held}
        self._sources = (Source(random, None), Source(np.random, None), *held.values())
        self._explained: set[int] | None = None
        self.functions = DrawingFunctions(reachable, drawing, self)
        self.choices = Choices(self)

    @property
    def useless(self) -> list[FunctionType]:
        """Functions that cannot be called before a run, as it turned out."""
        return self.functions.useless

    @property
    def recorder(self) -> StepRecorder:
        """That of the recording."""
        return self._recording.recorder

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While active, what is drawn is made before each run."""
        with contextlib.ExitStack() as stack:
            instead: dict[int, Any] = {}
            for module in (random, np.random):
                for name in NAMES & set(dir(module)):
                    self._exchange(stack, module, name, self._drawing(Source(module, None), name), instead)
                for name in {"seed", "setstate", "set_state"} & set(dir(module)):
                    self._exchange(stack, module, name, self._refusing(getattr(module, name)), instead)
            self._exchange(stack, torch, "from_numpy", from_numpy_or_drawn(torch.from_numpy), instead)
            for slot, source in self._held:
                self._put(stack, slot, source, StandInGenerator(Source(source, slot.path), self._drawing))
            stack.enter_context(self._held_arrays.replaced(self._read))
            for name, stub in self._held_arrays.makers(self.derive, self._is_noted):
                self._exchange(stack, np, name, stub, instead)
            for slot, held in self._reachable.holding_any(instead):
                if not isinstance(slot.container, Fixed):
                    self._put(stack, slot, held, instead[id(held)])
            stack.enter_context(self.functions.replaced())
            self.recorder.lent.may_write = self.tensors.may_write
            yield

    def _is_noted(self) -> bool:
        return threading.get_ident() == self._thread and not self._is_inside

    @staticmethod
    def _exchange(
        stack: contextlib.ExitStack, module: Any, name: str, stub: Callable[..., Any], instead: dict[int, Any]
    ) -> None:
        function = getattr(module, name)
        instead[id(function)] = stub
        stack.callback(setattr, module, name, function)
        setattr(module, name, stub)

    def _refusing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._others.have_waited():
                return function(*args, **kwargs)
            raise generator_is_set(self.recorder.here())

        return call

    @staticmethod
    def _put(stack: contextlib.ExitStack, slot: Slot, held: Any, other: Any) -> None:
        with contextlib.suppress(TypeError, AttributeError):
            slot.write(other)
            stack.callback(slot.write, held)

    def _drawing(self, source: Source, name: str) -> Callable[..., Any]:
        real = getattr(source.generator, name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            if self._others.have_waited() or self._is_inside:
                return real(*args, **kwargs)
            self._recording.look_at((*args, *kwargs.values()))
            chosen = self.choices.made(source, name, args, kwargs, real)
            return self.note(name, args, kwargs, (source,), real) if chosen is NO_CHOICE else chosen

        return draw

    # --- what is made before each run

    def derive(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DrawnTrace`."""
        return self.note(function, args, kwargs)

    def change(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DrawnTrace`."""
        self.refuse_change(args[0])
        return self.note(function, args, kwargs)

    def refuse_change(self, array: Any) -> None:
        """Raises: WrittenArray, UnsupportedStep where an array may not be changed."""
        if type(array) is not DrawnArray or self._held_arrays.lend(array.real):
            raise WrittenArray(
                how="which it holds, and which a program reads before it runs", origin=self.recorder.here()
            )
        if self.tensors:
            self.refuse("changes an array that it draws after it has made a tensor on such an array")

    def note(
        self,
        function: Callable[..., Any] | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sources: tuple[Source, ...] = (),
        real: Callable[..., Any] | None = None,
    ) -> Any:
        """Call now, and before each run. real: what the method of a generator was before it was replaced."""
        meant = Draw(
            which=len(self.made),
            function=function,
            args=tuple(map(self._operand, args)),
            kwargs={name: self._operand(item) for name, item in kwargs.items()},
            sources=sources,
        )
        generators = [OneFunction(real)] if real is not None else [as_it_was(x.generator) for x in sources]
        with self.inside():
            result = meant.make(generators, self._real)
        return self.add(meant, result)

    def add(self, meant: Draw, result: Any) -> Any:
        """Note what is made, and give what the code gets for it."""
        return self._shown(self.remember(meant, result).which, result)

    def _read(self, held: Held, real: Any) -> Any:
        return self.add(Draw(len(self.made), held, (), {}), real)

    def remember(self, meant: Draw, result: Any) -> Ref:
        """See `Notes`."""
        shown = "what is drawn here has another shape or type: it"
        shown = "that the same items are chosen" if type(result) is Places else shown
        question = len(self.recorder.questions)
        self.recorder.questions.append(Question(True, self.recorder.here(), shown))
        kind = kind_of_result(result)
        which = len(self.made)
        self.made.append(Draw(which, meant.function, meant.args, meant.kwargs, meant.sources, kind, question))
        self._real.append(result)
        return Ref(which)

    def _shown(self, which: int, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            self.tensors.add(which, self._real[self.made[which].args[0].which], result)
            return result
        if isinstance(result, np.ndarray) or (isinstance(result, np.generic) and not isinstance(result, _WHOLE)):
            return DrawnArray(self, which, result)
        if isinstance(result, _WHOLE) or type(result) in (int, float, bool):
            number = self._recording.draw(as_number(result))
            self.recorder.of_numpy.add(handle_of(number), type(result))
            self.taken.append(self.made[which])
            self.numbers.known[handle_of(number)] = Ref(which)
            return number
        if type(result) in (list, tuple):
            if len(result) > _MOST_IN_LISTS:
                self._refuse(f"draws a list of {len(result)} numbers")
            return type(result)(self.note(part, (Ref(which), slot), {}) for slot in range(len(result)))
        if type(result) is dict:
            return {key: self.note(part, (Ref(which), key), {}) for key in result}
        if result is None or type(result) is Places:
            return result
        self._refuse("draws something that is not a number")

    def _operand(self, item: Any) -> Any:
        """An argument, by what it is before each run."""
        if type(item) in (Ref, Source):
            return item
        if type(item) is DrawnArray:
            if self.tensors.are_written_on(item.real):
                self.refuse("reads an array that it draws after it has written a tensor on its memory")
            return Ref(item.which)
        if type(item) is StandInGenerator:
            return source_of(item)
        if is_traced(item):
            return self._number(item, may_guard=bool(self._held_arrays))
        if type(item) in (list, tuple):
            return type(item)(map(self._operand, item))
        if type(item) is np.ndarray and not item.dtype.hasobject:
            return item.copy()
        if type(item) is slice:
            return slice(*map(self._operand, (item.start, item.stop, item.step)))
        if not _is_fixed(item):
            self._refuse("draws random numbers with arguments that it computes")
        return item

    def _number(self, item: Any, *, may_guard: bool) -> Any:
        """A traced number, by what it is before each run. may_guard: the program may be for this number alone."""
        known = self.numbers.before(handle_of(item))
        if known is None and not may_guard:
            self._refuse("draws random numbers, or computes with them in NumPy, with arguments that it computes")
        return fixed_number(item) if known is None else known

    def argument(self, item: Any) -> Any:
        """An argument of a function that is called before each run. Raises: DovetailError where it is not known."""
        return self._number(item, may_guard=True) if is_traced(item) else self._operand(item)

    def refuse(self, what: str) -> NoReturn:
        """See `DrawnTrace`: it may be that another array was not drawn, and would be."""
        self.wants_arrays = not self._held_arrays
        self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        """The code needs drawn numbers now, unless a function of the user's is called as a whole."""
        if not self.wanted:
            self.wanted = candidates(self._reachable)
        error = UnsupportedStep(
            what=f"{what} (NumPy, or Python's module random)",
            why="what is drawn outside torch is drawn before the program runs: it can be computed with in NumPy, "
            "indexed, and made into tensors",
            hint="draw in a function that gets plain numbers and gives an array (it is called before each run), draw "
            "with torch (torch.randperm, torch.rand), or outside the step",
            origin=self.recorder.here(),
        )
        self.recorder.refusals.append(error)
        raise error

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """While active, draws are made and not noted: a function is noted as a whole."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    @property
    def wants_numbers(self) -> bool:
        """Whether the code asks for drawn numbers themselves, which arrays that are read before runs would not need."""
        asked = (x.args[0] for x in self.recorder.nodes if x.target == GUARD_NUMBER)
        return not self._held_arrays and any(isinstance(x, Value) and self.numbers.is_drawn(x) for x in asked)

    @property
    def is_inside(self) -> bool:
        """Whether such a function runs."""
        return self._is_inside

    @property
    def results(self) -> Sequence[Any]:
        """What was made so far."""
        return self._real

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every generator that is known."""
        return self._sources

    def _now(self, held: Held) -> Any:
        """What was read before the recording."""
        return self._real[next(x.which for x in self.made if x.function == held)]

    @property
    def _generators(self) -> list[list[Any]]:
        return [[x.generator for x in draw.sources] for draw in self.made]

    # --- afterwards

    def check(self) -> None:
        """Make everything as a run would, before the step. Raises: UnsupportedStep where that gives something else."""
        drawn = Drawn()
        try:
            drawn.draw(self.made, self._generators, self._now)
            is_same = all(map(is_same_result, drawn.made, self._real))
        except Exception:
            is_same = False
        drawn.put_back()
        if not is_same:
            raise UnsupportedStep(
                what="draws random numbers in a function that reads what the step has changed before",
                why="the function is called before the program runs, and would read what was there then",
                hint="give it what it reads as an argument, or change that after the call",
            )

    def explain(self, source: Any) -> bool:
        """Whether a generator is where the draws that were noted have left it. It stays there."""
        source = next((shared for shared, hidden in SHARED if hidden is source), source)
        if self._explained is None:
            self._explained = self._all_explained()
        return id(source) in self._explained

    def _all_explained(self) -> set[int]:
        """The generators that stand where they would if all was made again."""
        now = {key: random_state(source) for key, (source, _, _) in self._states.items()}
        for source, _, state in self._states.values():
            set_random_state(source, state)
        try:
            with contextlib.suppress(Exception):
                Drawn().draw(self.made, self._generators, self._now)
            return {key for key, (source, _, _) in self._states.items() if random_state(source)[0] == now[key][0]}
        finally:
            for key, (source, _, _) in self._states.items():
                set_random_state(source, now[key][1])


def _is_fixed(value: Any) -> bool:
    return type(value) in PLAIN or is_a(value, (np.generic, type, np.dtype, range)) or value is Ellipsis
