"""What runs where a node runs again gives its bits, and nothing that must happen once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ops.again import again_form
from dovetail.ops.prims import functional_form

aten = torch.ops.aten
NORM = functional_form(aten.native_batch_norm.default, (3, 4))

SHAPES = ((7, 5), (3, 5, 4), (4, 5, 6, 3), (2, 5, 3, 2, 4), (1, 5, 64, 64), (9, 64, 2, 2))
TYPES = (
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
)
LAYOUTS = ("contiguous", "channels last", "expanded", "transposed")


def _node(operands: Sequence[Any], target: Any = NORM) -> Node:
    args = [_value(f"x{k}", x, k) if isinstance(x, Tensor) else x for k, x in enumerate(operands)]
    results = target(*operands)
    outputs = tuple(_value(f"y{k}", y, 100 + k) for k, y in enumerate(results))
    return Node(target, tuple(args), outputs=outputs, unpack=True)


def _value(name: str, tensor: Tensor, storage: int) -> Value:
    meta = TensorMeta(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device, storage)
    return Value(name, meta)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "channels last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    return x.transpose(0, -1).contiguous().transpose(0, -1) if layout == "transposed" else x


def _operands(shape: Sequence[int], of_input: torch.dtype, of_state: torch.dtype, layout: str) -> list[Any]:
    torch.manual_seed(len(shape))
    channels = shape[1]
    x = _laid_out((torch.randn(*shape) * 3 + 1).to(of_input), layout)
    weight, bias, mean = (torch.randn(channels).to(of_state) for _ in range(3))
    variance = torch.rand(channels).to(of_state) + 0.5
    return [x, weight, bias, mean, variance, True, 0.1, 1e-5]


@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_batch_norm_has_its_bits_without_running_statistics(
    types: tuple[torch.dtype, torch.dtype], is_affine: bool
) -> None:
    for shape, layout in itertools.product(SHAPES, LAYOUTS):
        operands = _operands(shape, *types, layout)
        if not is_affine:
            operands[1] = operands[2] = None
        node = _node(operands)
        again = again_form(node)
        if types[0] is not types[1] and not is_affine:  # then only the statistics tell in which dtype mean is
            assert again is node
            continue
        assert again.outputs == node.outputs[:3]
        assert not {value.name for value in again.operands()} & {"x3", "x4"}
        given = {f"x{k}": x for k, x in enumerate(operands)}
        args = [given[x.name] if isinstance(x, Value) else x for x in again.args]
        before = [x.clone() for x in operands[3:5]]
        first, second = node.target(*operands), again.target(*args)
        for old, new in zip(first[:3], second, strict=True):
            assert (old.dtype, old.stride()) == (new.dtype, new.stride())
            assert torch.equal(old, new)
        assert all(torch.equal(a, b) for a, b in zip(before, operands[3:5], strict=True))


def test_what_stays_as_it_is() -> None:
    operands = _operands((4, 5, 3, 3), torch.float32, torch.float32, "contiguous")
    evaluating = _node([*operands[:5], False, *operands[6:]])
    assert again_form(evaluating) is evaluating
    nothing_kept = _node([*operands[:3], None, None, *operands[5:]], aten.native_batch_norm.default)
    assert again_form(nothing_kept) is nothing_kept
    writing = _node(operands, aten.native_batch_norm.default)
    assert again_form(writing) is writing  # no functional program has it
    relu = Node(aten.relu.default, evaluating.args[:1], outputs=evaluating.outputs[:1])
    assert again_form(relu) is relu


def test_another_device_is_not_known() -> None:
    node = _node(_operands((4, 5, 3, 3), torch.float32, torch.float32, "contiguous"))
    meta = torch.device("meta")
    moved = node.with_operands(
        lambda v: Value(v.name, TensorMeta(v.tensor.shape, v.tensor.stride, 0, v.tensor.dtype, meta, v.tensor.storage))
    )
    assert again_form(moved) is moved
