"""Choices among objects: `random.choice(layers)`, `random.sample(memory, 32)`, `random.shuffle(order_of_tensors)`.

Numbers that are drawn are inputs of a program. Objects cannot be: where a step chooses among them, it is drawn which
ones, in each call, and a program is for one choice. Where there are so many choices that hardly any comes up twice,
the step runs in eager mode.
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from dovetail.capture.drawn_arrays import is_drawn
from dovetail.capture.step_recorder import StepRecorder
from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.drawn_values import Ref, Source, shuffled, shuffled_in_place
from dovetail.frontends.step.generators import SHUFFLE
from dovetail.frontends.step.numbers_before import NumbersBefore
from dovetail.torch_compat.traced_numbers import handle_of, is_traced

_MOST_CHOICES = 64
_POPULATIONS = {"choice": ("seq", "a"), "choices": ("population",), "sample": ("population",), "permutation": ("x",)}
_NUMBERS = frozenset((int, float, bool, type(None)))
NO_CHOICE = object()


@dataclass(frozen=True, slots=True)
class Places:
    """Which items of a sequence are chosen. shape: of the array that they are in, in NumPy; None for a single one."""

    chosen: tuple[int, ...]
    shape: tuple[int, ...] | None


def drawn_places(generator: Any, name: str, count: int, /, *args: Any, **kwargs: Any) -> Places:
    """Choose among as many places. Generators draw as they do for a sequence of this length."""
    order = list(range(count))
    if name == SHUFFLE:
        generator.shuffle(order)
        drawn: Any = order
    else:
        function = getattr(generator, name)
        drawn = function(order if _is_of_python(generator, function) else count, *args, **kwargs)
    if isinstance(drawn, np.ndarray):
        return Places(tuple(drawn.ravel().tolist()), drawn.shape)
    return Places(tuple(drawn), (len(drawn),)) if isinstance(drawn, list) else Places((int(drawn),), None)


class _Notes(Protocol):
    """Who notes what is drawn: see `Draws`."""

    numbers: NumbersBefore

    @property
    def recorder(self) -> StepRecorder: ...
    def note(
        self,
        function: Callable[..., Any] | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sources: tuple[Source, ...],
        real: Callable[..., Any] | None = None,
    ) -> Any: ...
    def refuse(self, what: str) -> NoReturn: ...
    def refuse_change(self, array: Any) -> None: ...


class Choices:
    """The choices of one recording. among_many: what is to be said of one that hardly ever comes up twice."""

    def __init__(self, notes: _Notes) -> None:
        """notes: gets what is drawn, before each run."""
        self._notes: Any = weakref.proxy(notes)  # which has this
        self.among_many: UnsupportedStep | None = None

    def made(
        self, source: Source, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], real: Callable[..., Any]
    ) -> Any:
        """What a function that draws gives, where it chooses among objects, or shuffles; else `NO_CHOICE`."""
        if name == SHUFFLE:
            return self._shuffle(source, real, *args, **kwargs)
        named = dict(kwargs)
        key = next((key for key in _POPULATIONS.get(name, ()) if key in named), None)
        if not (args or key) or name not in _POPULATIONS:
            return NO_CHOICE
        population = args[0] if key is None else named.pop(key)
        others = args[1:] if key is None else args
        if type(population) is deque and _is_of_numbers([*population]) and self._are_known(population):
            return self._notes.note(name, (list(population), *others), named, (source,), real)
        if _is_of_numbers(population) and self._are_known(population):
            return NO_CHOICE
        if not _is_of_python(source.generator, real):
            population = _as_array(population)
            if population is None:
                return NO_CHOICE
        elif not hasattr(population, "__getitem__") or (name == "sample" and not isinstance(population, Sequence)):
            return real(*args, **kwargs)  # which raises an error
        places = self._places(source, name, len(population), others, named, real)
        if isinstance(population, np.ndarray) and places.shape is not None:
            return population[np.array(places.chosen, dtype=np.int64).reshape(places.shape)]
        chosen = [population[place] for place in places.chosen]
        return chosen[0] if places.shape is None else chosen

    def _shuffle(self, source: Source, real: Callable[..., Any], items: Any) -> None:
        """Shuffle a list, or an array that is drawn."""
        if is_drawn(items):
            self._notes.refuse_change(items)
            self._notes.note(shuffled_in_place, (source, items), {}, (source,))
        elif type(items) is not list:
            self._notes.refuse("shuffles an array in place")
        elif _is_of_numbers(items) and self._are_known(items):
            items[:] = self._notes.note(shuffled, (source, items), {}, (source,))
        else:
            places = self._places(source, SHUFFLE, len(items), (), {}, real)
            items[:] = [items[place] for place in places.chosen]

    def _are_known(self, population: Any) -> bool:
        """Whether no number is computed by the program, which runs after the choice."""
        if is_traced(population):
            return self._notes.numbers.before(handle_of(population)) is not None
        return not isinstance(population, list | tuple | deque) or all(map(self._are_known, population))

    def _places(
        self, source: Source, name: str, size: int, args: Sequence[Any], kwargs: Mapping[str, Any], real: Any
    ) -> Places:
        found: Places = self._notes.note(drawn_places, (source, name, size, *args), kwargs, (source,), real)
        if _are_many(size, len(found.chosen), is_order=name not in ("choice", "choices")):
            self.among_many = UnsupportedStep(
                what=f"chooses {len(found.chosen)} of {size} objects at random",
                why="a program is for one choice among objects, and hardly any choice comes up twice",
                hint="keep such data in tensors, and draw the numbers of their rows, which are inputs of a program: "
                "states[torch.randint(len(states), (32,))]",
                origin=self._notes.recorder.here(),
            )
            self._notes.recorder.refusals.append(self.among_many)
            raise self.among_many
        return found


def _are_many(size: int, chosen: int, *, is_order: bool) -> bool:
    """Whether there are more choices than programs would be of use. is_order: each item is chosen once."""
    choices = 1
    for number in range(chosen):
        choices *= size - number if is_order else size
        if choices > _MOST_CHOICES:
            return True
    return False


def _is_of_python(generator: Any, function: Any) -> bool:
    """Whether a generator is of Python's module, not of NumPy."""
    return isinstance(getattr(function, "__self__", generator), random.Random) or generator is random


def _is_number(item: Any) -> bool:
    return type(item) in _NUMBERS or is_traced(item) or (isinstance(item, np.generic) and item.dtype.kind not in "OUS")


def _is_of_numbers(population: Any, *, is_inside: bool = False) -> bool:
    """Whether what is chosen is a number, or a tuple of numbers: it can be an input. Inner lists can be changed."""
    if type(population) is tuple or (type(population) is list and not is_inside):
        return all(_is_of_numbers(item, is_inside=True) for item in population)
    if type(population) is np.ndarray:
        return not population.dtype.hasobject and population.dtype.kind not in "OUS"
    return _is_number(population) or is_drawn(population) or type(population) in (range, bytes, Ref)


def _as_array(population: Any) -> Any:
    """The array of objects, or of texts, that NumPy makes of a population; None for another one."""
    if type(population) in (list, tuple):
        if any(hasattr(item, name) for item in population for name in ("__getitem__", "__array__") if _is_object(item)):
            return None
        population = np.array(population)
    is_fit = isinstance(population, np.ndarray) and population.ndim == 1 and population.dtype.kind in "OUS"
    return population if is_fit else None


def _is_object(item: Any) -> bool:
    return not isinstance(item, str | bytes) and not _is_number(item)
