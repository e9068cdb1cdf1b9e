"""Arrays of NumPy that a step holds, and reads before each run of a program instead of having them in it.

    order = np.random.permutation(len(data))
    x = torch.from_numpy(data[order[:32]])         `data` is read, and indexed, before the run

An array is guarded by what it holds until that differs between two calls, or until drawn numbers index it. From then on
its slot is read before each run, and only its type, shape and dtype are guarded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.capture.drawn_arrays import DrawnArray
from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.drawn_values import Held
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.syntax import is_calling
from dovetail.reach.values import MAX_WATCHED_BYTES, PLAIN, is_a
from dovetail.torch_compat.traced_numbers import is_traced

_MAKING = {
    **{name: name for name in ("zeros", "ones", "full", "arange", "linspace", "eye", "identity")},
    **{name: name for name in ("array", "asarray", "asanyarray", "ascontiguousarray")},
    "empty": "zeros",  # any numbers are as good
}
_MOST = 64
_KINDS = ("dict", "names", "cell")


def array_slots(reachable: ReachableState, *, least_bytes: int = 0) -> frozenset[Path]:
    """Slots of arrays that can be read before each run: everything that holds such an array can hold a stand-in.

    None where there are very many. least_bytes: smaller arrays are left out.
    """
    fit = _by_array(reachable, least_bytes)
    return frozenset(slot.path for slots in fit for slot in slots) if len(fit) <= _MOST else frozenset()


def _by_array(reachable: ReachableState, least_bytes: int = 0) -> list[list[Slot]]:
    """The slots of each array that has stand-ins in all of them."""
    found: dict[int, list[Slot]] = {}
    for slot in reachable.slots:
        value: Any = slot.read() if slot.container.is_read(slot.key) else None
        if is_a(value, np.ndarray) and not value.dtype.hasobject and value.nbytes >= least_bytes:
            found.setdefault(id(value), []).append(slot)
    return [slots for slots in found.values() if all(map(_takes_stand_in, slots))]


def large_arrays(reachable: ReachableState) -> frozenset[Path]:
    """Those of them of which the state reached does not know what they hold."""
    return array_slots(reachable, least_bytes=MAX_WATCHED_BYTES + 1)


class HeldArrays:
    """Those of one recording; false where arrays are not read before each run. slots: where they are."""

    def __init__(self, slots: Sequence[NumberSlot] = (), *, makes: bool = False) -> None:
        """makes: arrays that the step makes are made before each run as well."""
        self.slots = slots
        self._makes = makes
        self._real: list[Any] = []

    @staticmethod
    def at(reachable: ReachableState, paths: Collection[Path], *, makes: bool) -> HeldArrays:
        """The arrays of some slots, wherever else they are held."""
        arrays = _by_array(reachable) if paths else []
        wanted = [slots for slots in arrays if any(slot.path in paths for slot in slots)]
        return HeldArrays([NumberSlot.at(slot) for slots in wanted for slot in slots], makes=makes)

    def __bool__(self) -> bool:
        return self._makes or bool(self.slots)

    @contextlib.contextmanager
    def replaced(self, read: Callable[[Held, Any], Any]) -> Iterator[None]:
        """While active, stand-ins are in the slots. read: makes one of what is there."""
        stand_ins: dict[int, Any] = {}  # an array has one, wherever it is held
        with contextlib.ExitStack() as stack:
            for number_slot in self.slots:
                real = number_slot.read()
                self._real.append(real)
                if id(real) not in stand_ins:
                    stand_ins[id(real)] = read(Held(number_slot.path), real)
                stand_in = stand_ins[id(real)]
                number_slot.write(stand_in)
                stack.callback(_put_back, number_slot, stand_in, real)
            yield

    def lend(self, array: Any) -> bool:
        """Whether an array is one of these, or a view of one."""
        return any(np.may_share_memory(array, real) for real in self._real)

    def makers(self, derive: Callable[..., Any], is_noted: Callable[[], bool]) -> list[tuple[str, Callable[..., Any]]]:
        """Functions of NumPy that make arrays, by name, with what makes such arrays before each run instead.

        derive: see `DrawnTrace`. is_noted: whether it is the step's code that calls.
        """
        makes = _MAKING if self._makes else {}
        return [(name, _making(getattr(np, name), getattr(np, to), derive, is_noted)) for name, to in makes.items()]


NO_ARRAYS = HeldArrays()


def _put_back(number_slot: NumberSlot, stand_in: Any, real: Any) -> None:
    if number_slot.read() is stand_in:  # else the step has put something there
        number_slot.write(real)


def _making(
    function: Callable[..., Any], before_runs: Callable[..., Any], derive: Callable[..., Any], is_noted: Any
) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        is_of_step = is_noted() and is_calling(sys._getframe(1), make)  # code of C expects memory
        if is_of_step and all(map(_is_known, (*args, *kwargs.values()))):
            return derive(before_runs, args, kwargs)
        return function(*args, **kwargs)

    return make


def _is_known(item: Any) -> bool:
    if type(item) in (list, tuple):
        return all(map(_is_known, item))
    if type(item) is DrawnArray or is_traced(item) or type(item) in PLAIN or is_a(item, np.generic | np.dtype):
        return True
    if type(item) is np.ndarray:
        return not item.dtype.hasobject
    return is_a(item, type | range) and not is_a(item, torch.Tensor)


def _takes_stand_in(slot: Slot) -> bool:
    return slot.kind in _KINDS and type(slot.key) is str and NumberSlot.at(slot).can_be_put
