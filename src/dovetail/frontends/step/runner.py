"""How a program of a step is run: inputs are put together, it runs, and what Python would have done is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch

from dovetail.capture.warned import Warned
from dovetail.errors import GuardMiss, OffloadFailed, OffloadUnavailable
from dovetail.execute.step import CompiledStepProgram, NothingWritten
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Draw, Drawn, Late, as_number
from dovetail.frontends.step.guard import Bindings
from dovetail.frontends.step.kept import Handed, Tree, grown, refill
from dovetail.frontends.step.noted_calls import HostCall
from dovetail.frontends.step.passed import is_of_argument
from dovetail.frontends.step.schedulers import SchedulerState
from dovetail.frontends.step.write_only import Put
from dovetail.frontends.structure import Structure, unflatten
from dovetail.ir.calling import FromConstant
from dovetail.reach.levels import picker
from dovetail.torch_compat.modes import set_switches


@dataclass(slots=True, eq=False)
class StepRunner:
    """See the module docstring.

    count: of the step's results. takes: the source of each tensor input of the program; constants follow, then numbers:
    leaves of the arguments or slots. writes: slots, and which value that the step leaves is put there. bound: slots,
    and how what is put there is made. filled: containers, and how what they hold is made. places: of objects that are
    handed on. returned: of those that are results, by their number. whole: how the result is made, where it shares new
    objects with what is left. write_only: containers that
    the step only puts things into. draws: what is made before each run, of random numbers outside torch. drawn:
    constants that are made so, by their place. left_modes: of torch, that each run leaves so. next_calls: what the next
    run calls, and no other, in place of host_calls: those and others that depend on nothing. rates: schedulers whose
    rates are read, with how many these are. takes_turns: two threads do not run it at once, because it writes, or reads
    objects among the arguments. One that takes part in collectives may wait for the other thread.
    """

    program: CompiledStepProgram
    takes: list[int]
    constants: list[torch.Tensor]
    numbers: list[int | Path | Draw | Late]
    writes: list[tuple[Path, int]]
    host_calls: tuple[HostCall, ...]
    result_structure: Structure
    count: int
    bound: list[tuple[Path, Tree]] = field(default_factory=list)
    filled: list[tuple[Path, Tree]] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    returned: Mapping[int, Path] = field(default_factory=dict)
    whole: Tree | None = None
    write_only: list[Path] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    drawn: dict[int, int] = field(default_factory=dict)
    left_modes: dict[str, Any] = field(default_factory=dict)
    next_calls: tuple[HostCall, ...] | None = None
    rates: frozenset[tuple[Path, int]] = frozenset()
    _pick: Callable[[Sequence[Any]], Sequence[Any]] = field(init=False)
    takes_turns: bool = field(init=False)
    _hands_out: bool = field(init=False)
    _warns: bool = field(init=False)

    def __post_init__(self) -> None:
        self._pick = picker(self.takes)
        leaves_more = bool(self.writes or self.bound or self.filled or self.host_calls)
        self._hands_out = leaves_more or bool(self.returned) or self.whole is not None
        numbers = [x.path if isinstance(x, Late) else x for x in self.numbers if isinstance(x, tuple | Late)]
        reads_more = any(map(is_of_argument, [*self.places, *numbers]))
        self.takes_turns = bool(self.program.written or leaves_more or reads_more) and not self.program.meets_others
        self._warns = any(isinstance(call.function, Warned) for call in (*self.host_calls, *(self.next_calls or ())))

    def run(self, tensors: Sequence[torch.Tensor], leaves: Sequence[Any], bindings: Bindings) -> Any:
        """Run the step. tensors: as the guard gave them.

        Raises: GuardMiss, NothingWritten, OffloadFailed, OffloadUnavailable when all is as before; StepInterrupted, or
        what a host call raises.
        """
        if self._warns and any(map(_may_be_raised, self.host_calls if self.next_calls is None else self.next_calls)):
            raise NothingWritten  # where eager mode does
        before = [x for call, x in zip(self.host_calls, bindings.schedulers, strict=True) if call.before]
        held = SchedulerState(before) if before else None
        drawn, read = Drawn(), dict[int, Any]()

        def run_program(tensors: Sequence[torch.Tensor], then: Callable[[], None] | None = None) -> Sequence[Any]:
            return self.program(self._taken(tensors, leaves, bindings, drawn, read), then)

        try:
            if before:
                self._step_schedulers(leaves, bindings, read)
            handed = self.program.wrapper(run_program, list(tensors))
        except (GuardMiss, NothingWritten, OffloadFailed, OffloadUnavailable):
            drawn.put_back()
            if held is not None:
                held.put_back()
            raise
        results = list(handed[: self.count])
        known, run = len(self.program.plan.outputs), None
        if self._hands_out or self.next_calls is not None:
            places = {path: read() for path, read in bindings.places}
            run = Handed(handed[:known], handed[known:], places)
            self._leave(run, bindings)
            for number, path in self.returned.items():
                results[number] = places[path]
        if self.left_modes:
            set_switches(self.left_modes)
        if self.whole is None or run is None:
            return unflatten(results, self.result_structure)
        return grown(self.whole, run)

    def _step_schedulers(self, leaves: Sequence[Any], bindings: Bindings, read: dict[int, Any]) -> None:
        """Step schedulers before a run. read: gets the numbers that are read before and after that, by their place.

        Raises: NothingWritten where a scheduler holds no such rates any more.
        """
        read.update((place, bindings.reads[place](leaves)) for place in bindings.early)
        for call, scheduler in zip(self.host_calls, bindings.schedulers, strict=True):
            if call.before:
                call.make_first(scheduler)
                read.update((place, get()) for place, after, get in bindings.late if after == call.number)
        if any(number is None for number in read.values()):
            raise NothingWritten

    def _taken(
        self,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        bindings: Bindings,
        drawn: Drawn,
        read: Mapping[int, Any],
    ) -> list[Any]:
        """What the program takes. read: numbers that were read already, by their place."""
        inputs: list[Any] = [*self._pick(tensors)]
        if self.draws:
            self._draw(drawn, bindings)
        if self.constants:
            made = {slot: drawn.made[which] for slot, which in self.drawn.items()}
            inputs += [made.get(slot, tensor) for slot, tensor in enumerate(self.constants)]
        given = [*leaves, *map(as_number, drawn.made)] if self.draws else leaves
        if not read:
            return inputs + [get(given) for get in bindings.reads]
        return inputs + [read[n] if n in read else get(given) for n, get in enumerate(bindings.reads)]

    def _draw(self, drawn: Drawn, bindings: Bindings) -> None:
        """Make what is made before a run. Raises: GuardMiss; NothingWritten where the user's or NumPy's code raises."""
        try:
            drawn.draw(self.draws, bindings.sources, lambda held: bindings.held[held.path]())
        except GuardMiss:
            raise
        except Exception as error:
            raise NothingWritten from error

    def _leave(self, run: Handed, bindings: Bindings) -> None:
        """Put into Python objects what the step leaves there, and make the calls outside."""
        containers, filled = ([read() for read in found] for found in (bindings.containers, bindings.filled))
        for put, (_, which) in zip(bindings.writes, self.writes, strict=True):
            put(run.left[which])
        for bind, (_, tree) in zip(bindings.binds, self.bound, strict=True):
            bind(grown(tree, run))
        for container, (_, tree) in zip(filled, self.filled, strict=True):
            refill(container, grown(tree, run))
        stepped = bindings.schedulers if self.next_calls is None else repeat(None)
        calls, self.next_calls = self.host_calls if self.next_calls is None else self.next_calls, None
        for call, scheduler in zip(calls, stepped, strict=False):
            if isinstance(call.function, Put):
                call.function(containers[call.function.at], run)
            elif not call.before:
                call.make(run, scheduler)


def _may_be_raised(call: HostCall) -> bool:
    """Whether a call is a warning that filters make an error."""
    if not isinstance(call.function, Warned):
        return False
    (text,) = call.arguments
    return call.function.may_be_raised(text.value if isinstance(text, FromConstant) else None)
