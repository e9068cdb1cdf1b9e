"""Operators that are said to keep their bits on blocks of rows do, and those that round across rows are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.ir.convert import describe
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops import exact_rows
from dovetail.ops.exact_rows import keeps_bits
from dovetail.ops.interpret import run_node
from dovetail.ops.rows import Rows, RowStep, row_step

aten = torch.ops.aten
ROWS, COLUMNS = 48, 67
UNITS = {"matrix": ((ROWS, COLUMNS), 1), "places": ((6, 8, COLUMNS), 2)}


class _Call:
    """A node over real tensors, of which those in `cut` have rows."""

    def __init__(self, target: Any, *args: Any, lead: int, cut: tuple[int, ...] = (0,), **kwargs: Any) -> None:
        self.held: dict[Value, Tensor] = {}
        operands = tuple(self._operand(arg) for arg in args)
        result = target(*args, **kwargs)
        out = Value("out", describe(result, 99))
        self.node = Node(target, operands, tuple(kwargs.items()), (out,))
        self.rows = Rows(lead, 1)
        self.known = {operands[place]: self.rows for place in cut}
        self.result = result
        self.lead = lead

    def _operand(self, arg: Any) -> Operand:
        if not isinstance(arg, Tensor):
            return arg  # type: ignore[no-any-return]
        value = Value(f"v{len(self.held)}", describe(arg, len(self.held)))
        self.held[value] = arg
        return value

    def whole(self) -> Tensor:
        """What all rows give, with the rows in one dimension."""
        return self.result.reshape(ROWS, *self.result.shape[self.lead :]).contiguous()

    def step(self) -> RowStep | None:
        return row_step(self.node, self.known, ROWS)  # type: ignore[arg-type]

    def parts(self, step: RowStep, each: int) -> Tensor:
        """What blocks of so many rows give, one after the other."""
        made = []
        for start in range(0, ROWS, each):
            count = min(each, ROWS - start)
            held = {value: self._part(value, step, start, count) for value in self.held}
            made += [tensor for _, tensor in run_node(step.block(count), held, {})]
        return torch.cat(made)

    def _part(self, value: Value, step: RowStep, start: int, count: int) -> Tensor:
        rows, tensor = step.takes.get(value), self.held[value]
        if rows is None:
            return tensor
        return tensor.reshape(ROWS, *tensor.shape[rows.lead :])[start : start + count]


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(9).to(dtype)


def _exact(shape: tuple[int, ...], lead: int, dtype: torch.dtype) -> dict[str, _Call]:
    x, y, bias = (_numbers(s, dtype, n) for n, s in enumerate((shape, shape, (COLUMNS,))))
    index = torch.randint(COLUMNS, (*shape[:-1], 3), generator=torch.Generator().manual_seed(3))
    few = _numbers(tuple(index.shape), dtype, 4)
    return {
        "add": _Call(aten.add.Tensor, x, bias, lead=lead),
        "sub": _Call(aten.sub.Tensor, x, y, lead=lead, cut=(0, 1)),
        "mul by a number": _Call(aten.mul.Scalar, x, 0.3, lead=lead),
        "div": _Call(aten.div.Tensor, x, y, lead=lead, cut=(0, 1)),
        "where": _Call(aten.where.self, x > 0, x, y, lead=lead, cut=(0, 1, 2)),
        "threshold": _Call(aten.threshold_backward.default, x, y, 0.1, lead=lead, cut=(0, 1)),
        "convert": _Call(aten._to_copy.default, x, lead=lead, dtype=torch.bfloat16),
        "slice": _Call(aten.slice.Tensor, x, -1, 3, 40, lead=lead),
        "gather": _Call(aten.gather.default, x, x.dim() - 1, index, lead=lead, cut=(0, 2)),
        "scatter_add": _Call(aten.scatter_add.default, x, x.dim() - 1, index, few, lead=lead, cut=(0, 2, 3)),
        "log_softmax": _Call(aten._log_softmax.default, x, -1, False, lead=lead),
        "its gradient": _Call(aten._log_softmax_backward_data.default, x, y, -1, dtype, lead=lead, cut=(0, 1)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", UNITS)
def test_blocks_have_the_bits_of_all_rows(kind: str, dtype: torch.dtype) -> None:
    for name, call in _exact(*UNITS[kind], dtype).items():
        step = call.step()
        assert step is not None, name
        assert keeps_bits(call.node, step), name
        for each in (1, 7, 16):
            parts = call.parts(step, each)
            assert torch.equal(parts.contiguous().view(torch.uint8), call.whole().view(torch.uint8)), name


def test_what_rounds_otherwise_is_refused() -> None:
    x, y, w = (
        _numbers((ROWS, COLUMNS), torch.float32, 0),
        _numbers((ROWS, COLUMNS), torch.float32, 1),
        torch.ones(67, 5),
    )
    z = torch.complex(x, y)
    for call in (
        _Call(aten.mm.default, x, w, lead=1),
        _Call(aten.sum.dim_IntList, x, [0], lead=1),
        _Call(aten.sum.dim_IntList, x, [1], lead=1),
        _Call(aten.exp.default, x, lead=1),
        _Call(aten.add.Tensor, x, y, lead=1, cut=(0, 1), alpha=0.3),
        _Call(aten.mul.Tensor, z, z, lead=1),
        _Call(aten._softmax.default, x.unsqueeze(1).expand(ROWS, 2, COLUMNS), -1, False, lead=1),
        _Call(aten._softmax.default, x.view(ROWS, 1, COLUMNS).repeat(1, 3, 1), 1, False, lead=1),
    ):
        step = call.step()
        assert step is None or not keeps_bits(call.node, step), call.node.target


def test_a_kernel_that_fails_its_trial_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _numbers((ROWS, COLUMNS), torch.float32, 0)
    call = _Call(aten._log_softmax.default, x, -1, False, lead=1)
    monkeypatch.setattr(exact_rows, "treats_rows_alone", lambda name, dtype: False)
    step = call.step()
    assert step is not None
    assert not keeps_bits(call.node, step)
