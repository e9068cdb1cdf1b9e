"""Numbers that a scheduler changes, as a step reads them after it has stepped the scheduler.

    scheduler.step()
    return loss, optimizer.param_groups[0]["lr"]

While the step is recorded no scheduler is stepped. What it may change is an input of its own from there on; where the
program wants one of those, the scheduler is stepped before the program runs, and the input read then. The rates that
a scheduler holds (`get_last_lr`) are such inputs, too; where none was stepped yet they are read before all else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.errors import StateChangedOtherwise
from dovetail.frontends.step.containers import Path, Slot, are_one_by_one
from dovetail.frontends.step.drawn_values import Late
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.program_inputs import groups_of
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.schedulers import held_rates
from dovetail.ir.program import Value
from dovetail.torch_compat.traced_numbers import handle_of, is_traced, number_now

_LIBRARY = torch.optim.lr_scheduler.__name__


class LateNumbers:
    """Those of one recording. needed: calls after which the step writes a number that the scheduler changes. written:
    calls before which it has written one.
    """

    def __init__(
        self,
        recording: StepRecording,
        reachable: ReachableState,
        slots: Sequence[NumberSlot],
        note: Callable[[Late], object],
    ) -> None:
        """slots: of the numbers that are inputs when the step begins. note: gets each late one, in order."""
        self.needed, self.written = set[int](), set[int]()
        self._values: dict[int, list[Value]] = {}
        self._rates: dict[int, list[Any]] = {}  # by the identity of a scheduler: what it left when it was stepped last
        self._held: dict[tuple[Path, int], list[Any]] = {}  # by a scheduler's path, and the call before: what it holds
        self._told: list[tuple[list[Any], list[Any]]] = []  # lists that the step was given, with what they held
        self._reachable = reachable
        self._unseen: dict[int, Any] = {}  # groups, by identity, with a scheduler that leads to each
        self._recording = recording
        self._note = note
        known = {slot.path: slot for slot in slots}
        groups = groups_of(optimizer for _, optimizer in reachable.optimizers)
        found = [NumberSlot.at(slot) for slot in (reachable.slots if groups else ())]
        self._slots = [known.get(slot.path, slot) for slot in found if id(slot.item) in groups and slot.can_be_put]
        for slot in self._slots:
            if slot.path not in known:
                slot.shown = slot.read()
        self._before: dict[Path, tuple[Any, Any]] = {}
        self._last: dict[Path, int] = {}

    def read_after(self, scheduler: Any, call: int) -> None:
        """A scheduler is stepped. call: the number of the call among the host calls."""
        groups = groups_of([scheduler.optimizer]) if hasattr(scheduler, "optimizer") else set()
        self._values[call] = []
        if not any(id(slot.item) in groups for slot in self._slots):
            self._unseen |= dict.fromkeys(groups, scheduler)
        for slot in self._slots:
            now = slot.read()
            if id(slot.item) not in groups or not (type(now) is float or is_traced(now)):
                continue
            if now is not slot.shown:
                self.written.add(call)
            self._before[slot.path] = self._before.get(slot.path, (slot.shown, now))
            number = self._recording.draw(number_now(now) if is_traced(now) else now)
            self._note(Late(slot.path, call))
            self._values[call].append(handle_of(number))
            self._last[slot.path] = call
            slot.put(number)
        held = scheduler.optimizer.param_groups if groups else []
        self._rates[id(scheduler)] = [group.get("lr") for group in held]

    def misses(self, slots: Sequence[Slot]) -> bool:
        """Whether numbers that a scheduler changes were looked at by nobody, and are among these slots."""
        return any(id(slot.item) in self._unseen for slot in (slots if self._unseen else ()))

    def end(self) -> None:
        """The step has run: slots hold what they did before a scheduler was stepped, if nothing was put there later.

        Raises: StateChangedOtherwise where the step has changed a list of rates.
        """
        if not all(are_one_by_one(given, held) for given, held in self._told):
            raise StateChangedOtherwise(
                what="changes the list of rates that a scheduler holds",
                why="the list that it was given is made for the program, and the scheduler's own would stay as it is",
                hint="change a copy: rates = list(scheduler.get_last_lr())",
            )
        for slot in self._slots:
            if slot.path in self._last:
                shown, now = self._before[slot.path]
                if slot.read() is slot.shown:
                    slot.write(now)
                else:
                    self.needed.add(self._last[slot.path])
                slot.shown = shown

    def wanted(self, used: Collection[Value]) -> int:
        """How many of the host calls there are up to the last scheduler that has to be stepped before the program.

        used: inputs of the program.
        """
        found = {call for call, values in self._values.items() if not set(used).isdisjoint(values)}
        return max(found | self.needed, default=-1) + 1

    def last_rates(self, scheduler: Any) -> list[Any] | None:
        """What `get_last_lr` gives; None where that is not known."""
        rates = self._rates_left(scheduler)
        if rates is None:
            rates = self._rates_held(scheduler)
        if rates is not None:
            self._told.append((rates, list(rates)))
        return rates

    def _rates_left(self, scheduler: Any) -> list[Any] | None:
        """What a scheduler of torch's has left when the step stepped it, whoever has changed the rates since."""
        kind = type(scheduler).__mro__[1]  # it has a class of its own meanwhile
        is_torchs = all(getattr(kind, name).__module__ == _LIBRARY for name in ("step", "get_last_lr"))
        rates = self._rates.get(id(scheduler), []) if is_torchs else []
        late = {value for values in self._values.values() for value in values}
        return rates if rates and all(is_traced(rate) and handle_of(rate) in late for rate in rates) else None

    def _rates_held(self, scheduler: Any) -> list[Any] | None:
        """What a scheduler holds, read anew for each run: after the last call before here that steps one."""
        path, rates = self._reachable.path_to(scheduler), held_rates(scheduler)
        if path is None or not rates:
            return None
        call = max(self._values, default=-1)
        if (path, call) not in self._held:
            numbers = []
            for which, rate in enumerate(rates):
                numbers.append(self._recording.draw(rate))
                self._note(Late(path, call, (which, len(rates))))
                self._values.setdefault(call, []).append(handle_of(numbers[-1]))
            self._held[path, call] = numbers
        return self._held[path, call]
