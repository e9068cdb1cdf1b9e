"""Run the program of a whole training step: nothing is written before every check has passed.

Up to the first write a failure leaves no trace: the random generator is put back, and the caller may run the step in
another way. After it, what was written stays, as in eager, and the error says what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from dovetail.analysis.liveness import Need, simulate_peak
from dovetail.analysis.reads import can_fail
from dovetail.errors import (
    CollectiveFailed,
    CollectivesDiffer,
    GuardMiss,
    OffloadFailed,
    OffloadUnavailable,
    RankFailed,
    StepInterrupted,
)
from dovetail.execute.agreement import OthersUseMore
from dovetail.execute.arena import ArenaProgram
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.needs import Needs, bytes_before_run
from dovetail.execute.transfers import Transfers
from dovetail.execute.wrapper import Wrapper
from dovetail.ir.calling import CallPlan
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.memory.in_arena import ArenaPlan
from dovetail.ops.collectives import ask_before, collective_of, groups_of_messages, sequences_of, used_of
from dovetail.ops.facts import facts_of, written_values
from dovetail.ops.given_generators import given_generators
from dovetail.torch_compat.modes import autocast_is_active, set_gradients
from dovetail.torch_compat.rng import default_generator

_AFTER_WRITES = "load a checkpoint, as you would after an error in the middle of an eager step"
_BEFORE_WRITES = "correct what failed: state is as it was, but other ranks have gone on, or wait in vain"
_NAMED = (GuardMiss, OffloadFailed, OffloadUnavailable, CollectivesDiffer, CollectiveFailed, RankFailed)


class NothingWritten(Exception):
    """The program failed before its first write. __cause__: the error."""


class LastCheck:
    """What is called once the last check of a run has passed. then: what is to be done now, if anything."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None

    def __call__(self, _: object) -> None:
        """The check has passed."""
        if self.then is not None:
            self.then()


@dataclass(frozen=True)
class CompiledStepProgram:
    """code: of the program that works in place. plan: what is done around it, by wrapper. names: of the
    plan's inputs. labels: of the program's.

    reports: what each pass says of itself, by name. hints: a number for each size symbol. recorded_peak_bytes: the
    simulated peak of the program as it was recorded. run: runs the code, and notes something besides; the code itself
    if None. last_check: that the code passes. state_bytes: of what a call has before it begins. eager_collectives: as
    `collectives`, in eager mode.
    """

    code: CompiledProgram | ArenaProgram
    plan: CallPlan
    wrapper: Wrapper
    names: tuple[str, ...]
    labels: tuple[str, ...]
    reports: tuple[tuple[str, str], ...] = ()
    hints: Mapping[str, Number] = field(default_factory=dict)
    recorded_peak_bytes: int = -1
    run: Callable[[list[Any]], Sequence[Any]] | None = None
    last_check: LastCheck = field(default_factory=LastCheck)
    state_bytes: int = 0
    transfers: Transfers | None = None
    eager_collectives: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program that works in place."""
        return self.code.program

    @cached_property
    def peak_bytes(self) -> int:
        """The peak of a call above what is there before: tensors, and what operators take besides. Each runs by itself:
        native code takes as much at most, and limits are kept where it does not run as well.
        """
        peak = self._simulated(self.program) if self.arena is None else self.arena.peak_bytes
        return max(peak, bytes_before_run(self.program))

    @cached_property
    def run_bytes(self) -> int:
        """The same where native code runs."""
        if isinstance(self.code, ArenaProgram):
            return self.peak_bytes
        return max(self._simulated(self.code.as_run), bytes_before_run(self.program))

    def _simulated(self, program: Program) -> int:
        return simulate_peak(program, self.hints, need_of=self._needs.need_of).peak_bytes

    @property
    def arena(self) -> ArenaPlan | None:
        """What of it lies in an arena, and where; None where it runs without one."""
        return self.code.plan if isinstance(self.code, ArenaProgram) else None

    @property
    def unknown_needs(self) -> tuple[str, ...]:
        """Operators of which it is not known what they take besides."""
        return tuple(dict.fromkeys(str(collective_of(node) or node.target) for node in self._needs.unknown))

    def need_of(self, node: Node) -> Need:
        """What a node of the program takes besides operands and results."""
        return self._needs.need_of(node)

    @cached_property
    def _needs(self) -> Needs:
        needs = Needs(self.hints)
        needs.measure(self.program.nodes)
        return needs

    @cached_property
    def draws(self) -> bool:
        """Whether it moves the random generator."""
        return any(facts_of(node.target).draws for node in self.program.nodes)

    @cached_property
    def _generators(self) -> list[torch.Generator]:
        """The generators that the program may draw from, the CPU's default one apart."""
        values = [value for node in self.program.nodes for value in node.results() if value.is_tensor]
        gpus = {v.tensor.device.index or 0 for v in values if v.tensor.device.type == "cuda"}
        of_gpus = [default_generator(gpu) for gpu in sorted(gpus)]
        return list({id(x): x for x in (*of_gpus, *given_generators(self.program.nodes))}.values())

    @cached_property
    def first_write(self) -> int:
        """The number of the first node that writes an input, or does something outside the program."""
        return first_write(self.program)

    @cached_property
    def collectives(self) -> Mapping[str, Sequence[str]]:
        """For each process group, in the order of first use, a line for each collective."""
        return sequences_of(self.program.nodes)

    @cached_property
    def used_parameters(self) -> Mapping[str, str]:
        """For each process group, which parameters get gradients, where ranks tell each other; see `used_of`."""
        return used_of(self.program.nodes)

    @cached_property
    def groups_of_messages(self) -> frozenset[str]:
        """The process groups in which it sends or receives messages between two ranks."""
        return groups_of_messages(self.program.nodes)

    @property
    def meets_others(self) -> bool:
        """Whether it takes part in a collective, or in a message between two ranks."""
        return self.first_collective < len(self.program.nodes)

    @cached_property
    def first_collective(self) -> int:
        """The number of the first node that takes part in a collective."""
        nodes = self.program.nodes
        return next((at for at, node in enumerate(nodes) if collective_of(node) is not None), len(nodes))

    def _agreeing(self, then: Callable[[], None] | None) -> Callable[[], None] | None:
        """What is done once the last check has passed. Ranks agree before; at once, where there is no check."""
        if not self.collectives:
            return then
        group, *later = self.collectives
        if any("0" in self.used_parameters.get(other, "") for other in later):
            raise OthersUseMore  # it would be known only when others count on this rank
        if not self._has_checks:
            ask_before(group)
            return then

        def agree() -> None:
            ask_before(group)
            if then is not None:
                then()

        return agree

    @cached_property
    def _has_checks(self) -> bool:
        return any(isinstance(node.target, Prim) and can_fail(node) for node in self.program.nodes)

    @property
    def written(self) -> tuple[str, ...]:
        """The inputs that it writes, by label."""
        places = {index for inputs in self._writes.values() for index in inputs}
        return tuple(label for index, label in enumerate(self.labels) if index in places)

    @cached_property
    def _writes(self) -> dict[Node, tuple[int, ...]]:
        return _outside_writes(self.program)

    def __call__(self, inputs: list[Any], then: Callable[[], None] | None = None) -> Sequence[Any]:
        """Run. inputs: one per input of the program; emptied. then: called once the last check has passed, if any.

        Raises: NothingWritten, GuardMiss, OffloadFailed, OffloadUnavailable, CollectivesDiffer, CollectiveFailed,
        RankFailed when all is as before; StepInterrupted when something was written, or other ranks have gone on.
        """
        generators = [default_generator(), *self._generators] if self.draws else []
        states = [generator.get_state().numpy().tobytes() for generator in generators]  # no tensors that live on
        try:
            self.last_check.then = self._agreeing(then)
            return self._run_plainly(inputs)
        except Exception as error:
            at = self.code.failed_at(error)
            if at is not None and (at >= self.first_write or self._left_others(error, at)):
                raise self._interrupted(error, at) from error
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            if isinstance(error, _NAMED):
                raise
            raise NothingWritten from error
        finally:
            self.last_check.then = None  # which knows tensors

    def _run_plainly(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the code, without gradients and casts: these are nodes of the program."""
        run, records = self.run or self.code, torch.is_grad_enabled()
        set_gradients(False)
        try:
            if self.transfers is None and not autocast_is_active():
                return run(inputs)
            with ExitStack() as stack:
                if self.transfers is not None:
                    stack.enter_context(self.transfers.run())
                for kind in ("cpu", "cuda"):
                    if torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, enabled=False))
                return run(inputs)
        finally:
            set_gradients(records)

    def _left_others(self, error: Exception, at: int) -> bool:
        """Whether others wait for this rank, which cannot begin again without them."""
        return at > self.first_collective and not isinstance(error, _NAMED)

    def _interrupted(self, error: Exception, at: int) -> StepInterrupted:
        written = {i for node, inputs in self._writes.items() for i in inputs}
        done: dict[int, None] = {}
        for node in self.program.nodes[: at + 1]:
            done.update(dict.fromkeys(self._writes.get(node, ())))
        names = [self.labels[index] for index in done]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return StepInterrupted(
            count=len(done),
            total=len(written),
            names=shown or "none",
            error=f"{type(error).__name__}: {error}",
            hint=_AFTER_WRITES if done else _BEFORE_WRITES,
            origin=self.program.nodes[at].origin,
        )


def first_write(program: Program) -> int:
    """The number of the first node that writes an input, or does something outside the program."""
    writes = _outside_writes(program)
    return next((at for at, node in enumerate(program.nodes) if node in writes), len(program.nodes))


def _outside_writes(program: Program) -> dict[Node, tuple[int, ...]]:
    """The nodes that show outside, with the inputs that they write."""
    of_storage = {v.tensor.storage: i for i, v in enumerate(program.inputs) if v.is_tensor}
    found: dict[Node, tuple[int, ...]] = {}
    for node in program.nodes:
        storages = [value.tensor.storage for value in written_values(node)]
        inputs = tuple(of_storage[storage] for storage in storages if storage in of_storage)
        if inputs or (isinstance(node.target, Prim) and node.target.outside):
            found[node] = inputs
    return found
