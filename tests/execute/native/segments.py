"""Programs of products, views and pointwise nodes, made by hand or drawn; what each gives is found by running it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.ir.program import Node, Operand, Program, ScalarMeta, TensorMeta, Value
from dovetail.ir.sizes import symbol
from tests.execute.native.programs import Drafted, aten, drawn_elements


class Segment(Drafted):
    """A program as it grows, beside the tensors that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.real: dict[Value, Tensor] = {}
        self.known: dict[int, int] = {}

    def input(self, tensor: Tensor) -> Value:
        """An input; on the memory of another one if the tensor is."""
        start = tensor.untyped_storage().data_ptr()
        if start not in self.known:
            self.storages += 1
            self.known[start] = self.storages
        self.bases.append(tensor)
        value = self.view(tensor, self.known[start])
        copied = tensor.untyped_storage().clone()
        self.real[value] = torch.empty(0, dtype=tensor.dtype).set_(
            copied, tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        self.known[copied.data_ptr()] = self.known[start]
        return value

    def call(self, target: Any, *args: Operand, **kwargs: Operand) -> Value:
        """A node; described as what it gives is. Raises: RuntimeError where torch refuses it."""
        found = target(*map(self._tensor, args), **{name: self._tensor(each) for name, each in kwargs.items()})
        meta: Any = self._meta(found) if isinstance(found, Tensor) else ScalarMeta(symbol(f"v{len(self.nodes)}"))
        result = Value(f"v{len(self.nodes)}", meta)
        self.nodes.append(Node(target, args, tuple(kwargs.items()), (result,)))
        if isinstance(found, Tensor):
            self.real[result] = found
        return result

    def several(self, target: Any, *args: Operand, **kwargs: Operand) -> list[Value]:
        """A node of several results. Raises: RuntimeError where torch refuses it."""
        found = target(*map(self._tensor, args), **{name: self._tensor(each) for name, each in kwargs.items()})
        results = [Value(f"v{len(self.nodes)}_{at}", self._meta(tensor)) for at, tensor in enumerate(found)]
        self.nodes.append(Node(target, args, tuple(kwargs.items()), tuple(results), unpack=True))
        self.real.update(zip(results, found, strict=True))
        return results

    def _meta(self, tensor: Tensor) -> TensorMeta:
        start = tensor.untyped_storage().data_ptr()
        if start not in self.known:
            self.storages += 1
            self.known[start] = self.storages
        place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        return TensorMeta(*place, tensor.dtype, tensor.device, self.known[start])

    def _tensor(self, operand: Operand) -> Any:
        if isinstance(operand, list):
            return [self._tensor(each) for each in operand]
        return self.real[operand] if isinstance(operand, Value) else operand


def drawn_matrix(generator: random.Random, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A matrix: in order, turned round, with gaps, at an odd address, or one row for all."""
    kind = generator.randrange(8)
    spare = generator.choice((0, 1, 4))
    flat = drawn_elements(generator, (rows + 3) * (columns + 3) + spare, dtype)[spare:]
    if kind <= 2:
        return flat[: rows * columns].view(rows, columns)
    if kind <= 4:
        return flat[: rows * columns].view(columns, rows).t()
    if kind == 5:
        return flat.view(rows + 3, columns + 3)[1 : rows + 1, :columns]
    if kind == 6:
        return flat.view(columns + 3, rows + 3)[:columns, 2 : rows + 2].t()
    return flat[:columns].expand(rows, columns)


def drawn_segment(seed: int) -> tuple[Segment, Program]:
    """A random program over matrices of a few sizes."""
    generator = random.Random(seed)
    draft, dtype = Segment(), generator.choice((torch.float32, torch.float32, torch.float64))
    sizes = generator.sample((1, 2, 3, 5, 8, 16, 17, 33, 40), 3)
    values = [
        draft.input(drawn_matrix(generator, generator.choice(sizes), generator.choice(sizes), dtype)) for _ in range(5)
    ]
    values += [draft.input(drawn_elements(generator, size, dtype)) for size in sizes]
    values.append(draft.input(torch.tensor(0.75, dtype=dtype)))
    for _ in range(generator.randint(6, 40)):
        try:
            values.append(_drawn_call(generator, draft, values))
        except (RuntimeError, IndexError):
            continue
    outputs = [value for value in values[9:] if generator.random() < 0.25]
    return draft, draft.program(outputs)


def _drawn_call(generator: random.Random, draft: Segment, values: Sequence[Value]) -> Value:
    latest = values[-6:] if generator.random() < 0.5 else values
    a, b, c = (generator.choice(latest if n == 0 else values) for n in range(3))
    matrices = [value for value in values if len(value.tensor.shape) == 2]
    m = generator.choice(matrices[-6:] if generator.random() < 0.5 else matrices)
    right = [value for value in matrices if value.tensor.shape[0] == m.tensor.shape[1]] or matrices
    alike = [value for value in values if value.tensor.shape == a.tensor.shape]
    other = generator.choice(alike)
    makers: list[Callable[[], Value]] = [
        lambda: draft.call(aten.mm.default, m, generator.choice(right)),
        lambda: draft.call(aten.mm.default, m, generator.choice(right)),
        lambda: draft.call(aten.addmm.default, c, m, generator.choice(right)),
        lambda: draft.call(aten.addmm.default, b, m, generator.choice(right), beta=generator.choice((1, 1, 0.5))),
        lambda: _into(draft, generator, values, m, generator.choice(right)),
        lambda: draft.call(aten.t.default, m),
        lambda: draft.call(aten.t.default, m),
        lambda: draft.call(aten.view.default, a, [-1]),
        lambda: draft.call(aten.slice.Tensor, a, 0, 1, 9),
        lambda: draft.call(aten.select.int, m, generator.randrange(2), 0),
        lambda: draft.call(aten.unsqueeze.default, a, 0),
        lambda: draft.call(aten.relu_.default, _dense(a)),
        lambda: draft.call(aten.tanh.default, a),
        lambda: draft.call(aten.threshold_backward.default, a, other, 0),
        lambda: draft.call(aten.mul_.Tensor, _dense(a), other),
        lambda: draft.call(aten.add.Tensor, a, other, alpha=0.3),
        lambda: draft.call(aten.sum.dim_IntList, m, [generator.randrange(2)], generator.random() < 0.5),
        lambda: draft.call(aten.addcmul_.default, _dense(a), other, other, value=0.1),
    ]
    return generator.choice(makers)()


def _dense(value: Value) -> Value:
    """A value that may be written. Raises: IndexError for one whose elements share memory."""
    if 0 in value.tensor.stride:
        raise IndexError
    return value


def _into(draft: Segment, generator: random.Random, values: Sequence[Value], m: Value, right: Value) -> Value:
    """A product written to memory that is there. Raises: IndexError where none has its shape."""
    shape = (m.tensor.shape[0], right.tensor.shape[1])
    taken = {m.tensor.storage, right.tensor.storage}
    found = [v for v in values if v.tensor.shape == shape and v.tensor.storage not in taken]
    return draft.call(aten.mm.out, m, right, out=_dense(generator.choice(found)))
