"""State that the user's code replaces between calls: `trainer.batch = batch`, a global variable, a new dictionary.

    for trainer.batch in loader:
        step()                          a step without arguments

A program is bound to the tensors that its state holds, and binding it to others means walking all that is reached.
Where two calls in a row have found other tensors in the same slots, the next program reads these as it reads arguments,
in containers that may be new ones as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.guard import UNBOUND, Bindings, StepGuard
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.variant import StepVariant

Found: TypeAlias = "tuple[frozenset[Path], frozenset[Path]]"


@dataclass(slots=True, eq=False)
class Replaced:
    """What calls of a step have found replaced. tensors, containers: slots; see the module docstring. Of containers,
    those as well that calls themselves replace.
    """

    tensors: frozenset[Path] = frozenset()
    containers: set[Path] = field(default_factory=set)
    _last: tuple[StepVariant | None, frozenset[Path]] = (None, frozenset())

    def is_so_again(self, variant: StepVariant, before: Bindings, reachable: ReachableState) -> bool:
        """Note what is replaced where a program was bound to another reachable state; whether the next program is to
        read it as it reads arguments. before: what the program was bound to.
        """
        tensors, containers = _replaced(variant.guard, before, reachable)
        (last, known), self._last = self._last, (variant, tensors)
        if last is not variant or not tensors or not tensors <= known or tensors <= self.tensors:
            return False
        self.tensors |= tensors
        self.containers |= containers
        self._last = None, frozenset()
        return True


def _replaced(guard: StepGuard, before: Bindings, reachable: ReachableState) -> Found:
    """The slots of tensors that are other ones than before, and the outermost ones of new containers around them.

    Nothing where a weight is another one: a checkpoint was loaded, say.
    """
    tensors, containers = set[Path](), set[Path]()
    if before is UNBOUND:
        return frozenset(), frozenset()
    for old, new in zip(before.tensors, guard.bindings.tensors, strict=True):
        if old is new:
            continue
        if new.requires_grad:
            return frozenset(), frozenset()
        for slot in reachable.slots_of_tensor(new):
            tensors.add(slot.path)
            containers.update(_new_around(slot, before))
    return frozenset(tensors), frozenset(containers)


def _new_around(slot: Slot, before: Bindings) -> set[Path]:
    """The slot of the outermost container around a slot that was not there before; none where there is none."""
    found, container = set[Path](), slot.container
    while container.parent is not None and not before.guard.knows(container.owner):
        found = {container.parent.path_of(container.key)}
        container = container.parent
    return found
