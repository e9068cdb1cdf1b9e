"""Sizes that data decide, while a step is recorded: `x[mask]`, `nonzero`, and numbers off tensors as sizes.

    picked = x[mask]                      index_1 = index(x, [mask]); guard(s0 >= 2, True, 0)
    part = x[: count.item()]        ->    item_2 = _local_scalar_dense(count); size_3 = int(item_2)
                                          guard(s1 >= 2, True, 1); guard(s1 < 8, True, 2); slice_4 = slice(x, 0, 0, s1)

Each is a symbol that is a number now: the one that an eager run has shown. What torch, or the code, asks about it is
answered so, and each answer becomes a question that the program asks again. Sizes 0 and 1, for which kernels and
layouts differ, are numbers: programs for them are programs of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from dovetail.capture.item_log import Results, Seen
from dovetail.ir.convert import scalar_of, size_of, tree_to_scalar
from dovetail.ir.program import Value
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.torch_compat.data_sizes import size_with_hint, with_shape_env, without_hint
from dovetail.torch_compat.fakes import FakeMode
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, expected_trees, guard_trees, hint_of, symbol_name

_A_COUNT = 3  # where no eager run has shown one


class UnknownSize(Exception):
    """An operator gives a size that is computed from one that is no size of its results."""


class Questioner(Protocol):
    """The recorder, as this module sees it."""

    def ask_of_sizes(self, fact: SizeExpr) -> None:
        """The program is to check a fact."""

    def bind_size(self, size: torch.SymInt, name: str, number: Value) -> None:
        """A number is known by a symbol of this name."""

    def bind_dimension(self, size: torch.SymInt, name: str, tensor: torch.Tensor, dim: int) -> None:
        """A size of a tensor is known by a symbol of this name."""

    def number_of_size(self, expr: SizeExpr, now: int, size: torch.SymInt, depends_on_data: bool) -> Any:
        """A traced number for a size, which is `expr` in the program."""


class DataSizes:
    """See the module docstring. names: of all symbols that stand for such sizes."""

    def __init__(self, mode: FakeMode, recorder: Questioner, others: Mapping[str, Any]) -> None:
        """others: further symbols, as they become known."""
        self._mode = mode
        self._others = others
        self._recorder: Questioner = weakref.proxy(recorder)  # which holds this
        self.names: set[str] = set()
        self._born: dict[str, Any] = {}  # by the symbol that torch has made
        self._fresh: list[torch.SymInt] = []
        self._places: dict[str, tuple[torch.SymInt, torch.Tensor, int]] = {}  # of symbols that no node makes yet
        self._of_numbers: dict[Value, Any] = {}
        self._numbers: dict[SizeExpr, Any] = {}
        self._asked: dict[SizeExpr, None] = {}
        self._heard = 0

    # --- sizes that operators make ----------------------------------------------------------------------------

    def begin(self) -> bool:
        """Let sizes that depend on data be symbols. Whether they were not before."""
        if self._mode.shape_env is not None:
            return False
        with_shape_env(self._mode)
        return True

    def settled(self, result: Any, results: Callable[[], Results]) -> Any:
        """What an operator gave, with symbols that are numbers now. results: what they were like in eager mode."""
        items = list(result) if isinstance(result, list | tuple) else [result]
        if not any(_has_symbols(item) and without_hint(item) for item in items):
            return result
        seen = results()
        made = [
            self._again(item, seen[place] if place < len(seen) else None)
            if _has_symbols(item) and without_hint(item)
            else item
            for place, item in enumerate(items)
        ]
        return type(result)(made) if isinstance(result, list | tuple) else made[0]

    def as_seen(self, results: Results) -> list[Any]:
        """What an operator gives that has no way to tell what, every size a symbol. Raises: UnknownSize."""
        made: list[Any] = []
        for seen in results:
            if seen is None or not seen.is_contiguous:
                raise UnknownSize
            sizes = [self._new(size) for size in seen.shape]
            with self._mode:
                made.append(torch.empty(sizes, dtype=seen.dtype, device=seen.device))
            self._places.update((_name_of(size), (size, made[-1], dim)) for dim, size in enumerate(sizes))
        return made

    def _again(self, item: Any, result: Seen | None) -> Any:
        """A result with symbols that are numbers now. result: what it was like in eager mode. Raises: UnknownSize."""
        if not isinstance(item, torch.Tensor):
            return self._known(item)
        seen = () if result is None else result.shape
        sizes: list[Any] = list(item.shape)
        born = [
            (self._bear(size, seen[dim] if dim < len(seen) else _A_COUNT), dim)
            for dim, size in enumerate(sizes)
            if without_hint(size) and symbol_name(size) not in (None, *self._born)
        ]
        shape, stride = tuple(map(self._known, item.shape)), tuple(map(self._known, item.stride()))
        with self._mode:
            made = torch.empty_strided(shape, stride, dtype=item.dtype, device=item.device)
        self._places.update((name, (size, made, dim)) for (name, size), dim in born)
        return made

    def _bear(self, size: torch.SymInt, now: int) -> tuple[str, torch.SymInt]:
        made = self._born[_name_of(size)] = self._new(now)
        return _name_of(made), made

    def _new(self, now: int) -> torch.SymInt:
        made = size_with_hint(with_shape_env(self._mode), now)
        self.names.add(_name_of(made))
        self._fresh.append(made)
        return made

    def _known(self, number: Any) -> Any:
        found = number if type(number) is int else scalar_of(number)
        if not isinstance(found, SizeExpr):
            return found
        if any(name not in self._born and name not in self._others for name in found.symbols()):
            raise UnknownSize
        return found.evaluate({**self._others, **self._born})

    # --- numbers as sizes, and sizes as numbers ---------------------------------------------------------------

    def size_of(self, handle: Value, now: int) -> Any:
        """The symbol for a number that the program computes, as a size or a place."""
        known = self._of_numbers.get(handle)
        if known is None:
            self.begin()
            known = self._of_numbers[handle] = self._new(now)
            self._recorder.bind_size(known, _name_of(known), handle)
            self.ask()
        return known

    def number_of(self, size: torch.SymInt) -> Any:
        """The traced number for a size that is a symbol, or is computed of such; any other size is itself."""
        found = size_of(size)
        if not isinstance(found, SizeExpr):
            return found
        if found not in self._numbers:
            now = hint_of(size)
            assert type(now) is int, "sizes have hints"
            depends_on_data = self.is_about_data(found)
            number = self._numbers[found] = self._recorder.number_of_size(found, now, size, depends_on_data)
            self._of_numbers[number.node.handle] = size
        return self._numbers[found]

    # --- questions ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Let the program ask again what was asked about sizes since the last time."""
        env = self._mode.shape_env
        if env is None or not self.names:
            return
        for name, (size, tensor, dim) in self._places.items():
            self._recorder.bind_dimension(size, name, tensor, dim)
        self._places.clear()
        for fact in (*self._assumed(), *self._noted(env), *self._relied_on(env)):
            is_about_data = isinstance(fact, SizeExpr) and not self.names.isdisjoint(fact.symbols())
            if is_about_data and fact not in self._asked:
                assert isinstance(fact, SizeExpr), "it has symbols"
                self._asked[fact] = None
                self._recorder.ask_of_sizes(fact)

    def _assumed(self) -> Iterator[Scalar]:
        """What symbols stand for by the way they were made; those that are 0 or 1 become numbers."""
        while self._fresh:
            size = self._fresh.pop(0)
            now, expr = hint_of(size), scalar_of(size)
            assert type(now) is int, "it was made with a number"
            if now in (0, 1):
                assert bool(size == now), "it is noted that it is this number"
            elif now > 1 and isinstance(expr, SizeExpr):
                yield SizeExpr("ge", (expr, 2))

    def _noted(self, env: Any) -> Iterator[Scalar]:
        trees = guard_trees(env, self._heard)
        self._heard += len(trees)
        yield from map(tree_to_scalar, trees)

    def _relied_on(self, env: Any) -> Iterator[Scalar]:
        """What torch will only know when the program runs, with the symbols that stand for its own."""
        for fact in map(tree_to_scalar, expected_trees(env)):
            if isinstance(fact, SizeExpr) and set(fact.symbols()) <= self._born.keys():
                yield scalar_of(fact.evaluate(self._born))

    def is_about_data(self, fact: Scalar) -> bool:
        """Whether a fact is about a size that depends on data."""
        return isinstance(fact, SizeExpr) and not self.names.isdisjoint(fact.symbols())


def _name_of(size: torch.SymInt) -> str:
    name = symbol_name(size)
    assert name is not None, "nothing was asked about it yet"
    return name


def _has_symbols(item: Any) -> bool:
    if isinstance(item, torch.Tensor):
        return any(type(x) is not int for x in (*item.shape, *item.stride(), item.storage_offset()))
    return isinstance(item, SYMBOLIC_TYPES)
