"""State that the user's code replaces between calls: `trainer.batch = batch`, a global variable, a new dictionary.

    for trainer.batch in loader:
        step()                          a step without arguments

A program is bound to the tensors that its state holds, and binding it to others means walking all that is reached.
Where two calls in a row have found other tensors in the same slots, the next program reads these as it reads arguments.
Containers that two calls have found to be new ones may be others from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.guard import BoundTo, Found, StepGuard
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.reach.values import attributes_of

_NOTHING: Found = frozenset(), frozenset()


@dataclass(slots=True, eq=False)
class Replaced:
    """What calls of a step have found replaced. tensors, containers: slots; see the module docstring. Of containers,
    those as well that calls themselves replace. may_be: whether tensors may be read so, as far as is known.
    """

    may_be: bool = True
    tensors: frozenset[Path] = frozenset()
    containers: set[Path] = field(default_factory=set)

    def is_so_again(self, guard: StepGuard, before: BoundTo, reachable: ReachableState) -> bool:
        """Note what is replaced where a program was bound to another reachable state; whether the next program is to
        read tensors there as it reads arguments. before: what the program was bound to.
        """
        found = _replaced(guard, before, reachable)
        (last_tensors, last_containers), guard.found_replaced = guard.found_replaced, found
        tensors, containers = found
        self.containers |= containers & last_containers
        is_new = bool(tensors) and tensors <= last_tensors and not tensors <= frozenset(guard.kept)
        if not (is_new and self.may_be):
            return False
        self.tensors |= tensors
        return True


def _replaced(guard: StepGuard, before: BoundTo, reachable: ReachableState) -> Found:
    """The slots of tensors that are other ones than before, and the outermost ones of new containers.

    Nothing where a weight is another one: a checkpoint was loaded, say. Nor where a tensor has attributes: these are
    found by way of the tensor that a program is bound to.
    """
    now, tensors = guard.bindings.tensors, set[Path]()
    if len(before.tensors) != len(now):
        return _NOTHING
    for old, new in zip(before.tensors, now, strict=True):
        if old != id(new):
            if new.requires_grad or attributes_of(new):
                return _NOTHING
            tensors.update(slot.path for slot in reachable.slots_of_tensor(new))
    return frozenset(tensors), reachable.new_containers(before.containers)
