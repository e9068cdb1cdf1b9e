"""Which Python numbers, and which arrays, are inputs of a step's next program, and which are guarded.

A number is guarded until it differs between two calls; then it becomes an input. Where code has no use for a traced
number (NumPy, text, a formula of torch's that asks for a plain one), it is guarded from then on, whatever it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

from dovetail.capture.step_questions import Question
from dovetail.capture.step_texts import new_mark
from dovetail.errors import CaptureFailed, DovetailError, StateChangedOtherwise
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.guard import BoundTo, StepGuard
from dovetail.frontends.step.held_arrays import array_slots, large_arrays
from dovetail.frontends.step.number_slots import NUMBERS
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.record import difference
from dovetail.frontends.step.replaced import Replaced
from dovetail.frontends.step.variant import Chosen, StepVariant
from dovetail.frontends.structure import Structure
from dovetail.frontends.variant_cache import VariantCache
from dovetail.reach.contents import value_key


@dataclass(frozen=True, slots=True)
class Numbers:
    """Slots of a reachable state, and leaves of the arguments, that hold numbers."""

    slots: frozenset[Path] = frozenset()
    leaves: frozenset[int] = frozenset()

    def __or__(self, other: Numbers) -> Numbers:
        return Numbers(self.slots | other.slots, self.leaves | other.leaves)

    def __sub__(self, other: Numbers) -> Numbers:
        return Numbers(self.slots - other.slots, self.leaves - other.leaves)

    def __and__(self, other: Numbers) -> Numbers:
        return Numbers(self.slots & other.slots, self.leaves & other.leaves)

    def __bool__(self) -> bool:
        return bool(self.slots or self.leaves)


class Tried(Protocol):
    """A recording of a step: see `StepCapture`."""

    @property
    def drawing_functions(self) -> tuple[list[FunctionType], list[FunctionType]]: ...
    @property
    def wants_arrays(self) -> bool: ...
    @property
    def has_hooks(self) -> bool: ...
    @property
    def has_texts_of_data(self) -> bool: ...


class Lifting:
    """What the calls of one step have shown so far. guarded: numbers that code cannot take as inputs.

    drawing: functions that draw outside torch, and are called before each run.
    kept: slots of tensors that calls replace, or what is done between them (`replaced`). write_only: containers that
    calls only put things into. read: those that calls read as well. turned: flags that calls have turned.
    plain: slots of numbers that the step changes and that its code cannot take as inputs: a program is for one number.
    mark: of texts that recordings of one call make of numbers.
    calls_hooks: hooks of optimizers are host calls. asks_texts: whole numbers that data decide are asked for where they
    are made into texts. makes_arrays: arrays of NumPy that the step makes are made before each run. answered_otherwise:
    questions of programs, by their numbers, that had other answers in this call. has_symbols: numbers are symbols where
    they are sizes or places of operators, because calls have shown too many. has_free_sizes: so are sizes of arguments.
    """

    def __init__(self, *, may_have_symbols: bool, dynamic: bool) -> None:
        """may_have_symbols: for numbers; some may pass a limit of memory. dynamic: for sizes of arguments."""
        self._dynamic = self.has_free_sizes = dynamic
        self.guarded = Numbers()
        self.calls_hooks = self.asks_texts = self.makes_arrays = self.has_symbols = False
        self.answered_otherwise: dict[int, Question] = {}
        self._may_have_symbols, self._numbers = may_have_symbols, dict[str, set[int]]()
        self._changed = Numbers()
        self._arrays: frozenset[Path] = frozenset()
        self._written: frozenset[Path] = frozenset()
        self.plain: frozenset[Path] = frozenset()
        self.mark = new_mark()
        self.kept: frozenset[Path] = frozenset()
        self.replaced = Replaced()
        self.write_only: frozenset[Path] = frozenset()
        self.read: frozenset[Path] = frozenset()
        self.turned: frozenset[Path] = frozenset()
        self.drawing: list[FunctionType] = []
        self._useless: list[FunctionType] = []
        self._before: tuple[Structure, list[Any]] | None = None

    def has_another_way(
        self, error: Exception, tried: Tried, reachable: ReachableState, *, may_be_numbers: bool
    ) -> bool:
        """Whether the step is recorded in another way after an error: its symbols, draws, hooks, texts, or sizes.

        tried: the recording. may_be_numbers: it is perhaps for numbers, which are inputs, that draws did not work.
        """
        if self.has_symbols and isinstance(error, DovetailError):
            self.has_symbols = self._may_have_symbols = False
            return True
        wanted, useless = tried.drawing_functions
        if not may_be_numbers and self.draws_in(wanted, useless):
            return True
        if self.reads_arrays(reachable, is_wanted=tried.wants_arrays):
            return True
        if isinstance(error, StateChangedOtherwise) and tried.has_hooks and not self.calls_hooks:
            self.calls_hooks = True  # it may be a hook that does what cannot be recorded
            return True
        wants_texts = tried.has_texts_of_data and not self.asks_texts  # the code may need the text itself
        self.asks_texts = self.asks_texts or wants_texts
        if not wants_texts and self._dynamic and isinstance(error, CaptureFailed):
            self.has_free_sizes = not self.has_free_sizes  # the code, or torch, may not do with symbols
            return not self.has_free_sizes
        return wants_texts

    def see(self, leaves: Sequence[Any], structure: Structure) -> None:
        """Note the arguments of a call that no program was captured for."""
        self._before = structure, [value_key(x) if type(x) in NUMBERS else None for x in leaves]

    def learn(
        self, leaves: Sequence[Any], structure: Structure, reachable: ReachableState, guards: Iterable[StepGuard]
    ) -> None:
        """Note what differs in a call from earlier ones. guards: that did not hold for such a reason, perhaps."""
        self.mark = new_mark()
        changed = set[int]()
        if self._before is not None and self._before[0] == structure:
            changed.update(
                index
                for index, (x, key) in enumerate(zip(leaves, self._before[1], strict=True))
                if type(x) in NUMBERS and key is not None and key[0] is type(x) and value_key(x) != key
            )
        slots, arrays = set[Path](), array_slots(reachable)
        for guard in guards:
            self.missed(guard.answered_otherwise(leaves))
            differences = difference(guard.record, reachable.record(guard.lifted))
            for found in differences:
                if (type(found.old) in NUMBERS and type(found.old) is type(found.new)) or found.path in arrays:
                    slots.add(found.path)
            if arrays and not differences and guard.reads.why():
                slots |= large_arrays(reachable)
            if guard.arguments.structure == structure:
                changed |= guard.arguments.changed_numbers(leaves)
        self._changed |= Numbers(frozenset(slots), frozenset(changed))

    def begin(self, leaves: Sequence[Any], structure: Structure) -> None:
        """A call begins. The arguments of the first one are noted."""
        self.answered_otherwise = {}
        if self._before is None:
            self.see(leaves, structure)

    def missed(self, question: Question | None, number: int | None = None) -> None:
        """Note that a program was not for a call, because a question had another answer. number: of the question, if
        the program has asked it itself.
        """
        if question is not None and number is not None:
            self.answered_otherwise[number] = question
        if question is not None and question.is_exact and type(question.answer) is int:
            answers = self._numbers.setdefault(str(question.origin), set())
            answers.add(question.answer)
            self.has_symbols = self.has_symbols or (self._may_have_symbols and len(answers) > 1)

    def writes(self, slots: frozenset[Path], left_out: frozenset[Path]) -> None:
        """Note slots that the step itself changes: a program must have them as inputs, but for those that its code
        cannot take so.
        """
        self.plain |= slots & left_out
        slots -= left_out
        assert not slots or not slots <= self._written, "a number that is an input is not a constant"
        self._written |= slots
        self.guarded -= Numbers(slots)

    def keeps(self, slots: frozenset[Path]) -> None:
        """Note slots of tensors that the step replaces by others."""
        assert not slots <= self.kept, "they are known"
        self.kept |= slots

    def finds_replaced(self, guard: StepGuard, before: BoundTo, reachable: ReachableState) -> bool:
        """Note what the user's code replaces between calls; see `Replaced.is_so_again`."""
        return self.replaced.is_so_again(guard, before, reachable)

    def renewed(self, cache: VariantCache[StepVariant], found: Chosen, capture: Callable[[], Chosen | None]) -> Chosen:
        """A program that reads replaced tensors as it reads arguments, in the place of one that does not; that one
        where there is none. found: with its inputs.
        """
        kept, self.kept = self.kept, self.kept | self.replaced.tensors
        cache.drop(found[0])
        newer = cache.captured(lambda: "calls find other tensors in the same places", capture)
        if newer is None:
            cache.add_again(found[0])
            self.kept, self.replaced.may_be = kept, False
        return newer or found

    def takes_for_write_only(self, paths: frozenset[Path], read: frozenset[Path] = frozenset()) -> None:
        """Note containers that the step puts things into. read: those that it turned out to read."""
        self.read |= read
        self.write_only = (self.write_only | paths) - self.read

    def reads_arrays(self, reachable: ReachableState, *, is_wanted: bool, needs_some: bool = False) -> bool:
        """Note that arrays are read, and made, before each run; whether that is new.

        is_wanted: by a recording. needs_some: it is of no use where no array is held.
        """
        if not (is_wanted or self.makes_arrays):
            return False
        arrays = array_slots(reachable) - self._arrays  # those that an earlier recording has not shown yet
        if not arrays and (needs_some or self.makes_arrays):
            return False
        self.makes_arrays = True
        self._arrays |= arrays
        self._changed |= Numbers(arrays)
        return True

    def draws_in(self, wanted: Iterable[FunctionType], useless: Iterable[FunctionType]) -> bool:
        """Note functions that draw; whether there is another one to try. useless: those that it was no use to call."""
        self._useless += useless
        self.drawing = [x for x in self.drawing if x not in self._useless]
        found = next((x for x in wanted if x not in self._useless and x not in self.drawing), None)
        if found is not None:
            self.drawing.append(found)
        return found is not None or bool(list(useless))

    def numbers(self, leaves: Sequence[Any], reachable: ReachableState) -> Numbers:
        """The inputs of a program for these arguments, hyperparameters apart.

        Code that asks for exact types would see those of traced numbers: it gets plain ones, where it can.
        """
        found = Numbers() if reachable.asks_types else self._changed - self.guarded
        found |= Numbers(self._written)
        return Numbers(
            found.slots, frozenset(i for i in found.leaves if i < len(leaves) and type(leaves[i]) in NUMBERS)
        )

    def fewer(self, tried: Numbers, blamed: Numbers, hyperparameters: Collection[Path]) -> Numbers | None:
        """What to guard in the next attempt, when one with these inputs has failed; None when there is nothing left.

        blamed: numbers that the failure is about, where that is known. Those that the step changes come last.
        """
        written = tried & Numbers(self._written)
        about = blamed & (tried | Numbers(frozenset(hyperparameters)))
        found = about or tried - written or written or None
        self.plain |= frozenset() if found is None else found.slots & self._written
        return found

    def leave_out(self, numbers: Numbers) -> None:
        """Note numbers that programs had to leave out of their inputs."""
        self.guarded |= numbers
        self._written -= numbers.slots
