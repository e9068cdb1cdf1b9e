"""What a recorded step returns: tensors, numbers and plain values, and objects that were there before."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import Any

import torch

from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.kept import NotMadeAgain, Tree, Trees
from dovetail.frontends.structure import Structure, flatten_made
from dovetail.reach.values import PLAIN, Kind, is_a, is_made_of_attributes, kind_of
from dovetail.torch_compat.fakes import attributes_set_on, is_fake
from dovetail.torch_compat.traced_numbers import is_traced

_UNCHANGING = (
    *PLAIN, Enum, slice, type(...), type(NotImplemented), torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    Decimal, Fraction, PurePath, datetime.date, datetime.timedelta,
)  # fmt: skip


class Results:
    """The results of one recording.

    leaves: tensors, numbers and the rest, in order, None for objects that each run makes. structure: how they are put
    together. places, whole: see `StepRunner`, once `settle` was called.
    """

    def __init__(
        self,
        result: Any,
        is_known: Callable[[Any], bool],
        given: Sequence[Any],
        look_at: Callable[[Sequence[Any]], None],
    ) -> None:
        """result: what the step has returned. is_known: whether an object was there before. given: arguments. look_at:
        gets what is neither a tensor nor a number. Raises: UnsupportedStep for an object of which no run makes another.
        """
        self._result = result
        self.leaves: list[Any]
        self.structure: Structure
        self.leaves, self.structure = flatten_made(result, partial(_is_whole, is_known))
        _refuse_attributes(
            {n: x for n, x in enumerate(self.leaves) if not any(x is other for other in given)}, is_known
        )
        self.places: dict[int, Path] = {}
        self.whole: Tree | None = None
        self._plain = {n: x for n, x in enumerate(self.leaves) if not (isinstance(x, torch.Tensor) or is_traced(x))}
        look_at(list(self._plain.values()))
        new = {n: x for n, x in self._plain.items() if not is_known(x) and not any(x is other for other in given)}
        self._made = {n: x for n, x in new.items() if is_made_of_attributes(type(x)) or _is_size_of_data(x)}
        _refuse_new({n: x for n, x in new.items() if n not in self._made})
        for number in self._made:
            self.leaves[number] = None
            del self._plain[number]

    def settle(self, trees: Trees) -> None:
        """Find out where results lie that were there before. Raises: UnsupportedStep where nothing shows that."""
        for number, item in self._plain.items():
            try:
                place = trees.known(item)
            except NotMadeAgain:
                _refuse_new({number: item})
            else:
                self.places.update({} if place is None else {number: place.path})
        trees.note_containers(self._result)

    def settle_new(self, trees: Trees) -> None:
        """Find out what is shared with what the step leaves, all of which is known by now. Raises: UnsupportedStep."""
        self.whole = trees.of_result(self._result, self.leaves, is_made=bool(self._made))
        if self.whole is None:
            _refuse_new(self._made)


def _is_whole(is_known: Callable[[Any], bool], item: Any) -> bool:
    return _is_size_of_data(item) or (not isinstance(item, torch.Tensor | tuple) and is_known(item))


def _is_size_of_data(item: Any) -> bool:
    """Whether this is a size with traced numbers: flat, it would be any tuple."""
    return isinstance(item, torch.Size) and any(map(is_traced, item))


def _refuse_new(results: Mapping[int, Any]) -> None:
    """Refuse results, by their number, that are neither tensors nor numbers nor plain. Raises: UnsupportedStep."""
    for index, item in results.items():
        if not is_unchanging(item):
            raise UnsupportedStep(
                what=f"returns an object of class {type(item).__qualname__} that it makes (result {index})",
                why="the program would return the same object in each call",
                hint="return tensors and numbers, in tuples, lists, dictionaries or dataclasses",
            )


def _refuse_attributes(results: Mapping[int, Any], is_known: Callable[[Any], bool]) -> None:
    """Refuse tensors, by their number, that the step makes and sets attributes on. Raises: UnsupportedStep."""
    for index, item in results.items():
        names = attributes_set_on(item) if isinstance(item, torch.Tensor) and is_fake(item) else []
        if names and not is_known(item):
            raise UnsupportedStep(
                what=f"returns a tensor on which it sets the attribute {names[0]!r} (result {index})",
                why="the program would return a tensor without it",
                hint="return what the attribute holds as another result, or set it after the call",
            )


def is_unchanging(item: Any) -> bool:
    """Whether a value is plain, or one that never changes, or a tuple or frozenset of such."""
    if is_a(item, (tuple, frozenset)):
        return all(map(is_unchanging, item))
    return is_a(item, _UNCHANGING) or kind_of(type(item)) is Kind.PLAIN
