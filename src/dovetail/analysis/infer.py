"""Descriptions of an operator's results, by running it on fake tensors.

Only needed for operators that were not recorded: the functional variants of writes. Answers are remembered by operator
and operand descriptions, because the same few writes recur in every layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from dovetail.ir.convert import describe, scalar_of, size_of
from dovetail.ir.program import Meta, Operand, ScalarMeta, Target, TensorMeta, Value, meta_symbols
from dovetail.ir.sizes import Size, SizeExpr
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.fake_layouts import as_laid_out, run_on_fakes
from dovetail.torch_compat.fakes import FakeMode, kernels_for_symbolic_sizes
from dovetail.torch_compat.modes import autocast_off


class MetaInference:
    """Callable `(target, args, kwargs) -> [description or None]`; storages are numbered from 0 in each answer.

    symbols: the symbolic number behind each size symbol, to build fakes of symbolic shape.
    """

    def __init__(self, mode: FakeMode, symbols: Mapping[str, Any]) -> None:
        self.mode = mode
        self._symbols = symbols
        self.answers: dict[object, Any] = {}  # of `new_nodes`
        self._known: dict[object, list[Meta | None]] = {}

    @property
    def is_symbolic(self) -> bool:
        """Whether there are sizes that are symbols."""
        return bool(self._symbols)

    def __call__(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...]
    ) -> list[Meta | None]:
        """Descriptions of the results, None where there is no tensor."""
        numbers = self._symbols if facts_of(target).pointwise else {}  # what is not a size
        key = (target, _key(args, numbers), _key(kwargs, numbers))
        if key not in self._known:
            self._known[key] = self._run(target, args, kwargs)
        return self._known[key]

    def _run(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...]
    ) -> list[Meta | None]:
        kernels = kernels_for_symbolic_sizes() if self._symbols else nullcontext()
        with self.mode, torch.no_grad(), autocast_off(), kernels:
            given = self.materialize(args)
            result = run_on_fakes(target, given, {name: self.materialize(o) for name, o in kwargs})
            result = as_laid_out(target, given, result)
        items = list(result) if isinstance(result, tuple | list) else [result]
        return [self._describe(item, place) for place, item in enumerate(items)]

    def _describe(self, item: object, place: int) -> Meta | None:
        if item is None:
            return None
        return describe(item, place) if isinstance(item, torch.Tensor) else ScalarMeta(scalar_of(item))

    def materialize(self, operand: Operand) -> Any:
        """An operand with fakes in place of values and symbolic numbers in place of size expressions."""
        if isinstance(operand, Value):
            if isinstance(operand.meta, ScalarMeta):
                return self.materialize(operand.meta.expr)
            return self.fake(operand.tensor)
        if isinstance(operand, SizeExpr):
            return operand.evaluate(self._symbols)
        if isinstance(operand, tuple | list):
            return type(operand)(self.materialize(item) for item in operand)
        return operand

    def settled(self, meta: TensorMeta) -> TensorMeta:
        """The description in what is known by now: a symbol that turned out to be a number is that number."""
        if not any(True for _ in meta_symbols(meta)):
            return meta

        def now(size: Size) -> Size:
            return size_of(self.materialize(size))

        return replace(
            meta, shape=tuple(map(now, meta.shape)), stride=tuple(map(now, meta.stride)), offset=now(meta.offset)
        )

    def fake(self, meta: TensorMeta) -> torch.Tensor:
        """A fake tensor of this description, on a storage of its own."""
        shape = tuple(self.materialize(size) for size in meta.shape)
        stride = tuple(self.materialize(size) for size in meta.stride)
        with self.mode:
            return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)


def _key(operand: Operand, numbers: Mapping[str, Any]) -> object:
    """Equal for operands of which an operator makes the same. numbers: symbols of which only the type counts."""
    if isinstance(operand, Value):
        if isinstance(operand.meta, ScalarMeta):
            kind = type(numbers.get(str(operand.meta.expr)))
            return ("number", kind) if kind in (bool, int, float) else operand.meta
        return operand.tensor.layout()
    if isinstance(operand, tuple | list):
        return tuple(_key(item, numbers) for item in operand)
    if isinstance(operand, int | float | bool):
        return (type(operand), operand)
    return operand if operand.__hash__ is not None else id(operand)
