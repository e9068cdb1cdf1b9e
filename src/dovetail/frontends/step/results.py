"""What a recorded step returns: tensors, numbers and plain values, and objects that were there before."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import torch

from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.kept import NotMadeAgain, Tree, Trees
from dovetail.frontends.structure import Structure, flatten
from dovetail.reach.values import PLAIN, Kind, is_a, kind_of
from dovetail.torch_compat.traced_numbers import is_traced

_UNCHANGING = (
    *PLAIN, Enum, slice, type(...), type(NotImplemented), torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    Decimal, Fraction, PurePath, datetime.date, datetime.timedelta,
)  # fmt: skip


class Results:
    """The results of one recording.

    leaves: tensors, numbers and the rest, in order. structure: how they are put together. places, whole: see
    `StepRunner`, once `settle` was called.
    """

    def __init__(self, result: Any, is_known: Callable[[Any], bool], given: Sequence[Any]) -> None:
        """result: what the step has returned. is_known: whether an object was there before. given: arguments.

        Raises: UnsupportedStep for an object that the step has made.
        """
        self._result = result
        self.leaves: list[Any]
        self.structure: Structure
        self.leaves, self.structure = flatten(result, lambda item: _may_change(item) and is_known(item))
        self.places: dict[int, Path] = {}
        self.whole: Tree | None = None
        is_data = (isinstance(item, torch.Tensor) or is_traced(item) for item in self.leaves)
        self._plain = {n: item for (n, item), skip in zip(enumerate(self.leaves), is_data, strict=True) if not skip}
        _refuse_new(self._plain, lambda item: is_known(item) or any(item is other for other in given))

    def settle(self, trees: Trees) -> None:
        """Find out where results lie that were there before. Raises: UnsupportedStep where nothing shows that."""
        for number, item in self._plain.items():
            try:
                place = trees.known(item)
            except NotMadeAgain:
                _refuse_new({number: item}, lambda _: False)
            else:
                self.places.update({} if place is None else {number: place.path})

    def settle_new(self, trees: Trees) -> None:
        """Find out what is shared with what the step leaves, all of which is known by now."""
        self.whole = trees.of_result(self._result, self.leaves)


def _may_change(item: Any) -> bool:
    return not isinstance(item, torch.Tensor | tuple)


def _refuse_new(results: Mapping[int, Any], known: Callable[[Any], bool]) -> None:
    """Refuse results that are neither tensors nor numbers nor plain, and that the step has made: it would be one.

    results: by their number. known: whether an object was there before the step. Raises: UnsupportedStep.
    """
    for index, item in results.items():
        if not (_is_unchanging(item) or known(item)):
            raise UnsupportedStep(
                what=f"returns an object of class {type(item).__qualname__} that it makes (result {index})",
                why="the program would return the same object in each call",
                hint="return tensors and numbers, in tuples, lists, dictionaries or dataclasses",
            )


def _is_unchanging(item: Any) -> bool:
    if is_a(item, (tuple, frozenset)):
        return all(map(_is_unchanging, item))
    return is_a(item, _UNCHANGING) or kind_of(type(item)) is Kind.PLAIN
