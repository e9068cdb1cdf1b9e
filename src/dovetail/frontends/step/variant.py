"""One program of a step, and when and how it is run.

A variant knows what it was captured for: the structure of the arguments, plain arguments, what the tensors are like,
which of them are one, which hold gradients, and what its guard compares. Before each call all of that is
asked, most of it in C++; then inputs are put together, the program runs, and what Python would have done is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from dovetail.capture.step_recorder import Question
from dovetail.errors import GuardMiss
from dovetail.execute.step import CompiledStepProgram, NothingWritten
from dovetail.frontends.arguments import Arguments
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Draw, Drawn, as_number
from dovetail.frontends.step.early_questions import EarlyQuestions, question_at
from dovetail.frontends.step.host_calls import HostCall
from dovetail.frontends.step.kept import Handed, Tree, grown, refill
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.record import Record
from dovetail.frontends.step.schedulers import SchedulerState
from dovetail.frontends.step.tensor_kinds import TensorKinds
from dovetail.frontends.step.write_only import Put
from dovetail.frontends.structure import Structure, unflatten
from dovetail.reach.guard import PythonGuard, PythonGuards
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.modes import set_switches


@dataclass(slots=True)
class Bindings:
    """What binds a variant to the objects of the present reachable state.

    tensors: the state. reads: for each number of the program, how it is read, given the leaves of the arguments.
    writes: where numbers that the step leaves are put, in order. kept: how tensors that calls replace are read. binds:
    where what else the step leaves is put. containers: that the step only puts things into.
    filled: containers that hold something else after each run.
    """

    guard: PythonGuards | _Never
    tensors: list[torch.Tensor]
    reads: list[Callable[[Sequence[Any]], Any]]
    writes: list[Callable[[Any], None]]
    kept: list[Callable[[], Any]] = field(default_factory=list)
    binds: list[Callable[[Any], None]] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    filled: list[Any] = field(default_factory=list)
    sources: list[list[Any]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Variant:
    """See the module docstring.

    reason: why it was captured. count: of the step's results. questions: that the program asks, by number. early: those
    that are asked beforehand. record, lifted: the reachable state it was captured in, and the slots that are inputs.
    state: where each tensor of the reachable state was held first. takes: the source of each tensor input of the
    program; constants follow, with the versions that they must have, then numbers: leaves of the arguments or slots.
    writes: slots, and which value that the step leaves is put there. reads: what the code read besides what the
    reachable state compares. kept: slots of tensors that are read like arguments. bound: slots, and how what is put
    there is made. filled: containers, and how what they hold is made. write_only: containers that the step only puts
    things into. draws: what is made before each run, of random numbers outside torch. drawn: constants that are made
    so, by their place. left_modes: of torch, that each run leaves so.
    """

    reason: str
    program: CompiledStepProgram
    arguments: Arguments
    kinds: TensorKinds
    record: Record
    lifted: frozenset[tuple[Any, ...]]
    state: list[Path]
    takes: list[int]
    constants: list[tuple[torch.Tensor, int]]
    numbers: list[int | Path | Draw]
    writes: list[tuple[Path, int]]
    host_calls: tuple[HostCall, ...]
    result_structure: Structure
    count: int
    questions: Sequence[Question]
    early: EarlyQuestions
    bindings: Bindings
    reads: PythonGuard
    kept: list[Path] = field(default_factory=list)
    bound: list[tuple[Path, Tree]] = field(default_factory=list)
    filled: list[tuple[Path, Tree]] = field(default_factory=list)
    write_only: list[Path] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    drawn: dict[int, int] = field(default_factory=dict)
    left_modes: dict[str, Any] = field(default_factory=dict)
    calls: int = 0
    misses: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether a call can be for this variant."""
        return self.reads.is_alive

    def inputs(self, leaves: Sequence[Any], structure: Structure) -> list[torch.Tensor] | None:
        """The tensors of a call, if the call is for this variant; else None. May say None wrongly."""
        if self.bindings is UNBOUND or not self.arguments.are(leaves, structure):
            return None
        if any(version_of(tensor) != version for tensor, version in self.constants):
            return None
        given = self.given(leaves)
        tensors = self.kinds.tensors(self.bindings.tensors, given)
        if tensors is None or not self.kinds.are(tensors, given) or not self.bindings.guard.holds():
            return None
        if self.early and self.early.missed([read(leaves) for read in self.bindings.reads]) is not None:
            return None
        return tensors

    def given(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The arguments, and tensors that are read like these."""
        return [*leaves, *(read() for read in self.bindings.kept)] if self.kept else leaves

    def is_kept_by_state(self, leaves: Sequence[Any], structure: Structure) -> bool:
        """Whether it is not the arguments that keep a call from this variant, but what else the step reaches."""
        if not (self.arguments.are(leaves, structure) and self.kinds.are_leaves_like(leaves)):
            return False
        return self.bindings is UNBOUND or not self.bindings.guard.holds()

    def answered_otherwise(self, leaves: Sequence[Any]) -> str:
        """The question about known numbers that has another answer in a call, "" where there is none."""
        if self.bindings is UNBOUND or not self.early:
            return ""
        which = self.early.missed([read(leaves) for read in self.bindings.reads])
        return "" if which is None else question_at(self.questions, which)

    def bind(self, bindings: Bindings, leaves: Sequence[Any]) -> bool:
        """Bind it to another reachable state, whose record is the same; whether its tensors are as expected."""
        if bindings is UNBOUND:
            return False
        before, self.bindings = self.bindings, bindings
        tensors = self.kinds.tensors(bindings.tensors, self.given(leaves))
        if tensors is None or not self.kinds.bind(tensors):
            self.bindings = before
            return False
        return True

    # --- running ----------------------------------------------------------------------------------------------

    def run(self, tensors: Sequence[torch.Tensor], leaves: Sequence[Any]) -> Any:
        """Run the step. tensors: as `inputs` gave them.

        Raises: GuardMiss, NothingWritten when all is as before; StepInterrupted, or what a host call raises.
        """
        self.calls += 1
        before = [call for call in self.host_calls if call.before]
        held = SchedulerState([call.scheduler for call in before]) if before else None
        for call in before:
            call.make(Handed())
        drawn = Drawn()

        def run_program(tensors: Sequence[torch.Tensor], then: Callable[[], None] | None = None) -> Sequence[Any]:
            return self.program(self._taken(tensors, leaves, drawn), then)

        try:
            handed = self.program.wrapper(run_program, list(tensors))
        except (GuardMiss, NothingWritten):
            drawn.put_back()
            if held is not None:
                held.put_back()
            raise
        known = len(self.program.plan.outputs)
        self._leave(Handed(handed[:known], handed[known:]))
        if self.left_modes:
            set_switches(self.left_modes)
        return unflatten(list(handed[: self.count]), self.result_structure)

    def _taken(self, tensors: Sequence[torch.Tensor], leaves: Sequence[Any], drawn: Drawn) -> list[Any]:
        """What the program takes."""
        inputs: list[Any] = [tensors[index] for index in self.takes]
        self._draw(drawn)
        inputs += [
            drawn.made[self.drawn[slot]] if slot in self.drawn else tensor
            for slot, (tensor, _) in enumerate(self.constants)
        ]
        given = [*leaves, *map(as_number, drawn.made)] if self.draws else leaves
        return inputs + [read(given) for read in self.bindings.reads]

    def _draw(self, drawn: Drawn) -> None:
        """Make what is made before a run. Raises: GuardMiss; NothingWritten where the user's or NumPy's code raises."""
        try:
            drawn.draw(self.draws, self.bindings.sources)
        except GuardMiss:
            raise
        except Exception as error:
            raise NothingWritten from error

    def _leave(self, run: Handed) -> None:
        """Put into Python objects what the step leaves there, and make the calls outside."""
        bindings = self.bindings
        for put, (_, which) in zip(bindings.writes, self.writes, strict=True):
            put(run.left[which])
        for bind, (_, tree) in zip(bindings.binds, self.bound, strict=True):
            bind(grown(tree, run))
        for container, (_, tree) in zip(bindings.filled, self.filled, strict=True):
            refill(container, grown(tree, run))
        for call in self.host_calls:
            if isinstance(call.function, Put):
                call.function(bindings.containers[call.function.at], run)
            elif not call.before:
                call.make(run)


def bindings_to(reachable: ReachableState, variant: Variant) -> Bindings:
    """What binds a variant to a reachable state whose record fits the variant's; `UNBOUND` where a tensor is gone."""
    wanted = {path for path in variant.numbers if not isinstance(path, int | Draw)}.union(
        path for path, _ in variant.writes
    )
    state = state_of(reachable, variant)
    if state is None:
        return UNBOUND
    slots = {slot.path: NumberSlot.at(slot) for slot in (reachable.slots if wanted else ()) if slot.path in wanted}
    reads = [
        itemgetter(x)
        if isinstance(x, int)
        else itemgetter(x.which - len(variant.draws))
        if isinstance(x, Draw)
        else _reader(slots[x])
        for x in variant.numbers
    ]
    writes: list[Callable[[Any], None]] = [slots[path].write for path, _ in variant.writes]
    try:
        kept = [NumberSlot.at(reachable.slot(path)).reader() for path in variant.kept]
        binds = [NumberSlot.at(reachable.slot(path)).binder() for path, _ in variant.bound]
        containers = [reachable.slot(path).read() for path in variant.write_only]
        filled = [reachable.slot(path).read() for path, _ in variant.filled]
        sources = [
            [x.generator if x.path is None else reachable.slot(x.path).read() for x in draw.sources]
            for draw in variant.draws
        ]
    except LookupError:
        return UNBOUND
    guards = PythonGuards([reachable.guard(variant.lifted), variant.reads])
    return Bindings(guards, state, reads, writes, kept, binds, containers, filled, sources)


def state_of(reachable: ReachableState, variant: Variant) -> list[torch.Tensor] | None:
    """The tensors of a reachable state that a variant was captured with, or those in their places; None where one is
    gone.
    """
    held = {slot.path: tensor for slot, tensor in reachable.tensors}
    if not all(path in held for path in variant.state if path):
        return None
    return [held[path] if path else NOTHING for path in variant.state]


def _reader(number_slot: NumberSlot) -> Callable[[Sequence[Any]], Any]:
    return lambda _: number_slot.read()


class _Never:
    def holds(self) -> bool:
        return False


NOTHING = torch.empty(0)
UNBOUND = Bindings(_Never(), [], [], [])
