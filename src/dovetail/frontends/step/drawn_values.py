"""What is made before each run of a step's program: draws outside torch, and what is computed of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dovetail.errors import GuardMiss
from dovetail.frontends.step.containers import Path
from dovetail.reach.values import random_state, set_random_state


@dataclass(frozen=True, slots=True)
class Ref:
    """Something made earlier, by its place."""

    which: int


@dataclass(frozen=True, slots=True)
class Source:
    """A random generator. path: where it is held, None for one that a module keeps."""

    generator: Any
    path: Path | None


@dataclass(frozen=True, slots=True)
class Held:
    """An array, or a number, that is read before each run. path: where it is held."""

    path: Path


@dataclass(frozen=True, slots=True)
class Late:
    """A number that is read before each run, after a scheduler was stepped. path: its slot; of a rate that a scheduler
    holds, the scheduler's. call: the number of the host call that steps one, -1 for what is read before all of them.
    rate: which of the rates that the scheduler holds, and how many there are.
    """

    path: Path
    call: int
    rate: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One draw, or a function of what was drawn before.

    which: its place. function: what is called, the name of a method of the first source, or what is read. sources: the
    generators that it may draw from. kind: what its result was like; another kind is answered by question number
    `question`.
    """

    which: int
    function: Callable[..., Any] | str | Held
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: tuple[Source, ...] = ()
    kind: Hashable = None
    question: int = -1

    def make(self, generators: Sequence[Any], made: Sequence[Any]) -> Any:
        """Draw. generators: of its sources, now. made: earlier results."""
        by_source = {id(x.generator): now for x, now in zip(self.sources, generators, strict=True)}

        def meant(item: Any) -> Any:
            if type(item) is Ref:
                return made[item.which]
            if type(item) is Source:
                return by_source[id(item.generator)]
            if type(item) is np.ndarray:
                return item.copy()
            if type(item) is slice:
                return slice(meant(item.start), meant(item.stop), meant(item.step))
            return type(item)(map(meant, item)) if type(item) in (list, tuple) else item

        args = [meant(item) for item in self.args]
        kwargs = {name: meant(item) for name, item in self.kwargs.items()}
        if isinstance(self.function, str):
            return getattr(generators[0], self.function)(*args, **kwargs)
        assert not isinstance(self.function, Held), "it is read, and not made"
        return self.function(*args, **kwargs)


def kind_of_result(item: Any) -> Hashable:
    """What must be the same in each call: of arrays, all but the numbers; of what is not a number, all."""
    if isinstance(item, torch.Tensor):
        return ("tensor", item.dtype, tuple(item.shape), item.stride())
    if isinstance(item, np.ndarray | np.generic):
        return (type(item), item.dtype.str, item.shape)
    if type(item) in (int, float, bool):
        return (type(item),)
    if type(item) in (list, tuple):
        return (type(item), *map(kind_of_result, item))
    if type(item) is dict:
        return (dict, *((key, kind_of_result(x)) for key, x in item.items()))
    return (type(item), item)


def is_same_result(one: Any, other: Any) -> bool:
    """Whether two results hold the same; of tensors, only what they are like."""
    if isinstance(one, torch.Tensor):
        return kind_of_result(one) == kind_of_result(other)
    if isinstance(one, np.ndarray | np.generic):
        return bool(one.tobytes() == other.tobytes())
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(is_same_result, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(is_same_result(one[key], other[key]) for key in one)
    return type(one) is type(other) and repr(one) == repr(other)


def as_number(item: Any) -> Any:
    """A number as an input: one of NumPy's that is no number of Python's as well becomes one."""
    return item.item() if isinstance(item, np.generic) and not isinstance(item, float) else item


@dataclass(slots=True)
class Drawn:
    """What was made for one call, in order, and where the generators were before."""

    made: list[Any] = field(default_factory=list)
    before: list[tuple[Any, Any]] = field(default_factory=list)

    def draw(self, draws: Sequence[Draw], generators: Sequence[Sequence[Any]], read: Callable[[Held], Any]) -> Drawn:
        """Make everything. generators: of the sources of each draw. read: gives what is read.

        Raises: GuardMiss; what a function raises.
        """
        distinct = {id(x): x for found in generators for x in found}
        self.before = [(x, random_state(x)[1]) for x in distinct.values()]
        for draw, found in zip(draws, generators, strict=True):
            result = read(draw.function) if isinstance(draw.function, Held) else draw.make(found, self.made)
            if draw.question >= 0 and kind_of_result(result) != draw.kind:
                raise GuardMiss(draw.question)
            self.made.append(result)
        return self

    def put_back(self) -> None:
        """Let the generators be where they were."""
        for generator, state in self.before:
            set_random_state(generator, state)


def shuffled(generator: Any, items: Sequence[Any]) -> list[Any]:
    """A list in an order that is drawn."""
    made = list(items)
    generator.shuffle(made)
    return made


def shuffled_in_place(generator: Any, array: Any) -> None:
    """Bring an array in an order that is drawn."""
    generator.shuffle(array)


def part(items: Any, slot: Any) -> Any:
    """One of several that were drawn at once."""
    return items[slot]
