"""Many steps in one call: what their batches are, and their results, stacked.

losses = step.run(loader)                      a call for each batch: tuples and lists are arguments, dicts keywords
losses = step.run((images, labels))            stacked tensors: call k gets images[k], labels[k]
losses = step.run(loader, progress=show, every=100)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dovetail.errors import BadOptionValue
from dovetail.frontends.step.interrupts import interrupts_wait
from dovetail.frontends.structure import Structure, flatten, unflatten

Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
Progress: TypeAlias = Callable[[int, Any], object]

_FIRST_ROOM = 64  # steps that there is room for at first where nobody knows how many there are


def run_steps(step: Callable[..., Any], batches: Any, progress: Progress | None, every: int) -> Any:
    """The results of a step for each batch, stacked; see `CompiledStep.run`."""
    _refuse(progress, every)
    done, results = 0, StackedResults(_count_of(batches))
    try:
        for args, kwargs in calls_of(batches):
            with interrupts_wait():
                result = step(*args, **kwargs)
                done += 1
                results.add(result)
            if progress is not None and done % every == 0:
                progress(done, result)
    except BaseException as error:
        error.add_note(f"steps of the run that are done: {done}")
        raise
    return results.stacked()


def calls_of(batches: Any) -> Iterator[Call]:
    """The arguments of each step. Raises: BadOptionValue for what are no batches, before the first step."""
    if tensors := _tensors_of(batches):
        return _slices(batches, tensors)
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping):
        what = "an iterable of batches, or tensors that are stacked along their first dimension, in a tuple or dict"
        raise BadOptionValue(option="batches", value=type(batches), reason="it has no batches", expected=what)
    return map(_call_of, batches)


def _call_of(batch: Any) -> Call:
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, tuple | list) else (batch,)), {}


def _tensors_of(batches: Any) -> list[torch.Tensor]:
    """The tensors where batches are stacked: one, or a tuple or dict that holds nothing else; else none."""
    if isinstance(batches, torch.Tensor):
        return [batches]
    held = list(batches.values()) if isinstance(batches, dict) else list(batches) if type(batches) is tuple else []
    return held if all(isinstance(item, torch.Tensor) for item in held) else []


def _slices(batches: Any, tensors: list[torch.Tensor]) -> Iterator[Call]:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise BadOptionValue(
            option="batches",
            value=shapes,
            reason="the first dimension of stacked tensors counts the steps, and these differ in it",
            expected="tensors with one first dimension, or a list of batches",
        )
    for parts in zip(*tensors, strict=True):
        yield ((), dict(zip(batches, parts, strict=True))) if isinstance(batches, dict) else (parts, {})


def _count_of(batches: Any) -> int | None:
    """How many steps there will be, if that is known."""
    if tensors := _tensors_of(batches):
        return tensors[0].shape[0] if tensors[0].dim() else None
    try:
        return len(batches)
    except (TypeError, NotImplementedError, OverflowError):
        return None


def _refuse(progress: Any, every: int) -> None:
    if progress is not None and not callable(progress):
        what = "a function of the number of steps that are done and the last one's result"
        raise BadOptionValue(option="progress", value=progress, reason="it is called after steps", expected=what)
    if type(every) is not int or every < 1:
        raise BadOptionValue(option="every", value=every, reason="it counts steps", expected="a whole number from 1 on")


class StackedResults:
    """Results of steps, in order, each copied when it comes: a step may return what the next one writes.

    A tensor that has the same shape and dtype in each step lies in one tensor with the steps in the first dimension.
    """

    def __init__(self, expected: int | None) -> None:
        """expected: how many steps there will be, if that is known."""
        self.count = 0
        self._room = expected or _FIRST_ROOM
        self._structure: Structure | None = None
        self._columns: list[_Tensors | list[Any]] = []
        self._all: list[Any] | None = None  # once structures differ

    def add(self, result: Any) -> None:
        """One more."""
        leaves, structure = flatten(result)
        if not self.count:
            self._structure = structure
            self._columns = [_Tensors(leaf, self._room) if isinstance(leaf, torch.Tensor) else [] for leaf in leaves]
        elif self._all is None and structure != self._structure:
            self._all = [self._one(index) for index in range(self.count)]
        if self._all is not None:
            self._all.append(unflatten([_copied(leaf) for leaf in leaves], structure))
        else:
            self._columns = [
                _with(column, leaf, self.count) for column, leaf in zip(self._columns, leaves, strict=True)
            ]
        self.count += 1

    def stacked(self) -> Any:
        """All of them, in the structure of one: tensors stacked, other values in lists. None if there was no step.

        A list of results where the steps' structures differ.
        """
        if self._all is not None:
            return self._all
        if self._structure is None:
            return None
        return unflatten([c.all(self.count) if isinstance(c, _Tensors) else c for c in self._columns], self._structure)

    def _one(self, index: int) -> Any:
        assert self._structure is not None, "there is a result"
        return unflatten([column[index] for column in self._columns], self._structure)


class _Tensors:
    """Tensors of one kind, in one."""

    def __init__(self, first: torch.Tensor, room: int) -> None:
        self._kind = _kind_of(first)
        try:
            self._held = first.new_empty((room, *first.shape), requires_grad=False)
        except RuntimeError:  # fewer steps may come than there could be
            self._held = first.new_empty((_FIRST_ROOM, *first.shape), requires_grad=False)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._held[index]

    def fits(self, leaf: object) -> bool:
        """Whether something is of that kind."""
        return isinstance(leaf, torch.Tensor) and _kind_of(leaf) == self._kind

    def put(self, tensor: torch.Tensor, index: int) -> None:
        """Copy one to its place."""
        if index == len(self._held):
            more = self._held.new_empty((2 * index, *self._held.shape[1:]))
            more[:index] = self._held
            self._held = more
        self._held[index].copy_(tensor.detach())

    def all(self, count: int) -> torch.Tensor:
        """So many. They are in memory of their own if there was room for many more."""
        held = self._held[:count]
        return held if 2 * count > len(self._held) else held.clone()


def _with(column: _Tensors | list[Any], leaf: Any, count: int) -> _Tensors | list[Any]:
    """A column with one more."""
    if isinstance(column, _Tensors) and column.fits(leaf):
        column.put(leaf, count)
        return column
    items = column if isinstance(column, list) else [column[index].clone() for index in range(count)]
    items.append(_copied(leaf))
    return items


def _kind_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
