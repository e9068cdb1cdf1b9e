"""When a program of a step is run: what its arguments, tensors and Python state must be like.

A guard knows the structure of the arguments, plain arguments, what the tensors are like, which of them are one, which
hold gradients, and what is compared of the Python state. All of that is asked before each call, most of it in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from dovetail.capture.step_questions import Question
from dovetail.frontends.arguments import Arguments, Written
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.early_questions import EarlyQuestions
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.record import Record, difference
from dovetail.frontends.step.tensor_kinds import TensorKinds
from dovetail.frontends.structure import Structure
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guards import PythonGuards
from dovetail.reach.memory_words import ChangedWord
from dovetail.torch_compat.autograd import version_of


@dataclass(slots=True, eq=False)
class StepCall:
    """A call of a step, its arguments flat."""

    step: Callable[..., Any]
    leaves: list[Any]
    structure: Structure


@dataclass(slots=True)
class Bindings:
    """What binds a program to the objects of the present reachable state.

    tensors: the state. reads: for each number of the program, how it is read, given the leaves of the arguments.
    writes: where numbers that the step leaves are put, in order. kept: how tensors that calls replace are read. binds:
    where what else the step leaves is put. containers: how to read those that the step only puts things into.
    filled: how to read containers that hold something else after each run. places: how to read what is handed on.
    schedulers: of the calls after, or before, each run.
    sources: of each draw. held: how to read what is read before each run. early, late: if schedulers are stepped
    before a run: places among `reads` of what is read before that; of what is read after which call, with how to read
    it.
    """

    guard: PythonGuards | _Never
    tensors: list[torch.Tensor]
    reads: list[Callable[[Sequence[Any]], Any]]
    writes: list[Callable[[Any], None]]
    kept: list[Callable[[], Any]] = field(default_factory=list)
    binds: list[Callable[[Any], None]] = field(default_factory=list)
    containers: list[Callable[[], Any]] = field(default_factory=list)
    filled: list[Callable[[], Any]] = field(default_factory=list)
    places: list[tuple[Path, Callable[[], Any]]] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    sources: list[list[Any]] = field(default_factory=list)
    held: dict[Path, Callable[[], Any]] = field(default_factory=dict)
    early: list[int] = field(default_factory=list)
    late: list[tuple[int, int, Callable[[], Any]]] = field(default_factory=list)


_GONE = (LookupError, AttributeError, TypeError)
Found: TypeAlias = "tuple[frozenset[Path], frozenset[Path]]"


@dataclass(frozen=True, slots=True)
class BoundTo:
    """What a program was bound to, by identity: tensors of the state, and containers. Nothing is kept alive."""

    tensors: tuple[int, ...] = ()
    containers: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class StepGuard:
    """See the module docstring.

    record, lifted: the reachable state that the program was captured in, and the slots that are inputs. opened: those
    in which calls of the step find, or leave, new containers. state: where each tensor of the reachable state was held
    first. kept: slots of tensors that are read like arguments. reads: what the code read besides what the reachable
    state compares. constants: tensors, with the versions that they must have.
    questions: that the program asks, by number. early: those that are asked beforehand. before: what the program was
    bound to, where it is bound to nothing now. found_replaced: slots of tensors and of containers that were other ones
    when it was bound the last time.
    attributes: of tensors that are read like arguments. changed_word: what compares words of memory, if machine code is
    to.
    """

    arguments: Arguments
    kinds: TensorKinds
    record: Record
    lifted: frozenset[Path]
    opened: Collection[Path]
    state: list[Path]
    kept: list[Path]
    reads: PythonGuard
    constants: list[tuple[torch.Tensor, int]]
    questions: Sequence[Question]
    early: EarlyQuestions
    bindings: Bindings
    attributes: Written
    changed_word: ChangedWord | None = None
    before: BoundTo = BoundTo()
    found_replaced: Found = (frozenset(), frozenset())

    @property
    def bound_to(self) -> BoundTo:
        """What the program is bound to, or was the last time."""
        if self.bindings is UNBOUND:
            return self.before
        return BoundTo(tuple(map(id, self.bindings.tensors)), self.bindings.guard.known())

    def let_go(self) -> None:
        """Be bound to nothing."""
        self.before, self.bindings = self.bound_to, UNBOUND

    @property
    def is_alive(self) -> bool:
        """Whether a call can be for the program."""
        return self.reads.is_alive

    def inputs(self, leaves: Sequence[Any], structure: Structure) -> list[torch.Tensor] | None:
        """The tensors of a call, if the call is for the program; else None. May say None wrongly."""
        if self.bindings is UNBOUND or not self.arguments.are(leaves, structure):
            return None
        if any(version_of(tensor) != version for tensor, version in self.constants):
            return None
        given = self.given(leaves)
        tensors = self.kinds.tensors(self.bindings.tensors, given)
        if tensors is None or not self.kinds.are(tensors, given) or not self.bindings.guard.holds():
            return None
        if not self.attributes.are(given):
            return None
        if self.early and self.early.missed([read(leaves) for read in self.bindings.reads]) is not None:
            return None
        return tensors

    def given(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The arguments, and tensors that are read like these; None for those that are gone."""
        return [*leaves, *map(_held, self.bindings.kept)] if self.kept else leaves

    def is_kept_by_state(self, leaves: Sequence[Any], structure: Structure) -> bool:
        """Whether it is not the arguments that keep a call from the program, but what else the step reaches."""
        if not (self.arguments.are(leaves, structure) and self.kinds.are_leaves_like(leaves)):
            return False
        return self.bindings is UNBOUND or not self.bindings.guard.holds()

    def answered_otherwise(self, leaves: Sequence[Any]) -> Question | None:
        """The question about known numbers that has another answer in a call, None where there is none."""
        if self.bindings is UNBOUND or not self.early:
            return None
        try:
            numbers = [read(leaves) for read in self.bindings.reads]
        except _GONE:  # it is not for its answer that the program is not for the call
            return None
        which = self.early.missed(numbers)
        return None if which is None else self.questions[which]

    def bind(self, bindings: Bindings, leaves: Sequence[Any]) -> bool:
        """Bind the program to another reachable state of the same record; whether its tensors are as expected."""
        if bindings is UNBOUND:
            return False
        before, self.bindings = self.bindings, bindings
        given = self.given(leaves)
        tensors = self.kinds.tensors(bindings.tensors, given)
        if tensors is None or not self.attributes.are(given) or not self.kinds.bind(tensors):
            self.bindings = before
            return False
        return True

    def expected(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors of a call that the program was captured for."""
        tensors = self.kinds.tensors(self.bindings.tensors, self.given(leaves))
        assert tensors is not None, "it was captured for them"
        return tensors

    def why(self, leaves: Sequence[Any], structure: Structure, reachable: ReachableState) -> str:
        """The first thing that keeps a call, with what can be reached now, from the program."""
        told = self.arguments.difference(leaves, structure)
        if told:
            return told
        differences = difference(self.record, reachable.record(self.lifted))
        if differences:
            first = differences[0]
            return f"{first.label} changed: {_short(first.old)} -> {_short(first.new)}"
        question = self.answered_otherwise(leaves)
        if question is not None:
            return f"a check had another outcome: {question}"
        read = self.reads.why()
        if read:
            return read
        state = self.state_in(reachable)
        if state is None:
            return "a tensor is gone"
        kept = [_held(reachable.slot(path).read) for path in self.kept]  # whatever the program is bound to
        given = [*leaves, *kept]
        names = (self.kept[place - len(leaves)] for place in self.attributes.changed(given))
        return self.kinds.difference(state, given) or "".join(f"attributes of {name} changed" for name in names)

    def state_in(self, reachable: ReachableState) -> list[torch.Tensor] | None:
        """The tensors of a reachable state that the program was captured with, or those in their places.

        None where one is gone.
        """
        held = {slot.path: tensor for slot, tensor in reachable.tensors}
        if not all(path in held for path in self.state if path):
            return None
        return [held[path] if path else NOTHING for path in self.state]


def _held(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except _GONE:  # what held it is of another form now
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Never:
    def holds(self) -> bool:
        return False

    def known(self) -> frozenset[int]:
        return frozenset()


NOTHING = torch.empty(0)
UNBOUND = Bindings(_Never(), [], [], [])
