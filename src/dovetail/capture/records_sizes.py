"""Sizes that are symbols, as a step's code knows them: numbers that are traced, and sizes again where operators get
them (`data_sizes`, `number_sizes`)."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.capture.data_sizes import DataSizes
from dovetail.capture.number_sizes import NumberSizes
from dovetail.capture.records_sharded import RecordsSharded
from dovetail.ir.program import Node, Operand, ScalarMeta, Target, Value
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ops.prims import GUARD
from dovetail.torch_compat.traced_numbers import Plain, fixed_number, handle_of, number_now

_SIZE = torch.ops.aten.sym_size.int


class RecordsSizes(RecordsSharded):
    """See the module docstring."""

    sizes: DataSizes
    number_sizes: NumberSizes
    _from_data: set[Value]

    def trace_number(self, value: Any, now: Plain) -> Any:
        """See `StepRecorder`."""
        raise NotImplementedError

    def size_for(self, handle: Any, now: Plain) -> Any:
        """See `NumberTrace`."""
        return self._as_size(self.trace_number(handle, now))

    def number_for(self, size: Any) -> Any:
        """See `NumberTrace`."""
        return self.sizes.number_of(size)

    def _as_size(self, number: Any) -> Any:
        """A traced number as a size: a symbol where data or sizes decide it, or it is to be one, else the number."""
        now, handle, sizes = number_now(number), handle_of(number), self.number_sizes
        is_free = handle in self._from_data or sizes.is_of_arguments(handle)
        if type(now) is not int or not (is_free or (sizes.is_on and isinstance(handle, Value))):
            return fixed_number(number)
        self.guesses.check(handle)
        return sizes.size_of(handle, now)

    def ask_of_sizes(self, fact: SizeExpr) -> None:
        """See `Questioner`."""
        self.ask(GUARD, fact, True, f"`{fact}`, of a size,")

    def bind_size(self, size: torch.SymInt, name: str, number: Value) -> None:
        """See `Questioner`."""
        self._bind_symbol(size, name, int, (number,))

    def bind_dimension(self, size: torch.SymInt, name: str, tensor: torch.Tensor, dim: int) -> None:
        """See `Questioner`."""
        self._bind_symbol(size, name, _SIZE, (self.value_of(tensor), dim))

    def _bind_symbol(self, size: torch.SymInt, name: str, target: Target, operands: tuple[Operand, ...]) -> None:
        self.symbols.setdefault(name, size)
        value = Value(self._fresh_name("size"), ScalarMeta(symbol(name)))
        self.nodes.append(Node(target, operands, outputs=(value,), phase=self.phase, origin=self._tracker.here()))

    def number_of_size(self, expr: SizeExpr, now: int, size: torch.SymInt, depends_on_data: bool) -> Any:
        """See `Questioner`."""
        value = self._number_node(int, (expr,), "size", now)
        if depends_on_data:
            self._from_data.add(value)
        else:
            self.number_sizes.given(value, size)
        return self.trace_number(value, now)
