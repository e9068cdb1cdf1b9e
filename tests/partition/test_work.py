"""What a node costs, in bytes."""

from __future__ import annotations

import pytest
import torch

from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ir.sizes import Size, symbol
from dovetail.partition.work import ACCELERATOR, CPU, work_of

aten = torch.ops.aten


def _tensor(*shape: Size, storage: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Value:
    strides: tuple[Size, ...] = tuple(1 for _ in shape)
    return Value(f"v{storage}", TensorMeta(shape, strides, 0, dtype, torch.device(device), storage))


def _product(n: int, device: str) -> Node:
    a, b, c = (_tensor(n, n, storage=k, device=device) for k in range(3))
    return Node(aten.mm.default, (a, b), outputs=(c,))


@pytest.mark.parametrize(
    ("n", "device", "work"),
    [
        (8, "cpu", 3 * 8 * 8 * 4),  # its bytes take longer
        (1000, "cpu", 2 * 1000**3 // 10),
        (1000, "cuda", 3 * 1000 * 1000 * 4),
        (4000, "cuda", 2 * 4000**3 // 250),
    ],
)
def test_a_product_of_matrices(n: int, device: str, work: int) -> None:
    call = (CPU if device == "cpu" else ACCELERATOR).bytes_per_call
    assert work_of(_product(n, device), {}) == call + work


def test_a_pointwise_node_reads_each_operand_once() -> None:
    x, y = _tensor(10), _tensor(10, storage=1, dtype=torch.float64)
    assert work_of(Node(aten.mul.Tensor, (x, x), outputs=(y,)), {}) == CPU.bytes_per_call + 40 + 80


def test_a_view_costs_nothing() -> None:
    x, y = _tensor(10), _tensor(5)
    assert work_of(Node(aten.slice.Tensor, (x, 0, 0, 5), outputs=(y,)), {}) == 0


def _convolution(batch: Size, results: int) -> Node:
    image, weight = _tensor(batch, 40, 8, 8), _tensor(60, 40, 3, 3, storage=1)
    out = _tensor(batch, 60, 6, 6, storage=2)
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    if results == 1:
        return Node(aten.convolution.default, (image, weight, *rest), outputs=(out,))
    grads = (_tensor(batch, 40, 8, 8, storage=3), _tensor(60, 40, 3, 3, storage=4), None)
    args = (out, image, weight, *rest, [True, True, False])
    return Node(aten.convolution_backward.default, args, outputs=grads, unpack=True)


_ONE_IMAGE = 2 * 60 * 6 * 6 * 40 * 3 * 3


def test_symbolic_sizes() -> None:
    node = _convolution(symbol("n"), 1)
    assert work_of(node, {"n": 100}) == CPU.bytes_per_call + 100 * _ONE_IMAGE // 10
    assert work_of(node, {}) == CPU.bytes_per_call + _ONE_IMAGE // 10


def test_several_results() -> None:
    assert work_of(_convolution(1, 2), {}) == CPU.bytes_per_call + 2 * _ONE_IMAGE // 10
