"""Elementwise operators of operands that differ in dtype, shape and strides: fakes find what kernels give."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.torch_compat.fake_layouts import RightLayouts
from dovetail.torch_compat.fakes import new_fake_mode

aten = torch.ops.aten
OPERATORS = [
    *(aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.gt.Tensor, aten.ne.Tensor, aten.maximum.default),
    *(aten.fmod.Tensor, aten.hypot.default, aten.logaddexp.default, aten.logaddexp2.default, aten.heaviside.default),
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.copysign.Tensor),
    *(aten.polar.default, aten.where.self, aten.addcmul.default, aten.addcdiv.default, aten.pow.Tensor_Tensor),
    *(aten.hardswish_backward.default, aten.silu_backward.default, aten.huber_loss.default, aten.mse_loss.default),
    aten.ldexp.Tensor,
]
DTYPES = [
    *((torch.float32, torch.float32), (torch.float32, torch.float64)),
    *((torch.int64, torch.float32), (torch.int64, torch.int64)),
    *((torch.float64, torch.float64), (torch.bfloat16, torch.float32)),
]


def _operands(dtype: torch.dtype) -> list[Tensor]:
    full = (torch.rand(4, 3, 2).permute(2, 1, 0), torch.rand(2, 4, 3).mT, torch.rand(2, 3, 8)[..., ::2])
    spread = (torch.rand(2, 3, 1).expand(2, 3, 4), torch.rand(1, 3, 4).expand(2, 3, 4))
    return [(made * 2).to(dtype) for made in (*full, *spread, torch.rand(3, 1))]


def _described(made: Tensor) -> Any:
    return made.shape, made.stride(), made.dtype


@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_fakes_lie_as_kernels_lay_out(op: Any) -> None:
    compared, mode = 0, new_fake_mode()
    for first, second in DTYPES:
        for pair in itertools.product(_operands(first), _operands(second)):
            operands = (pair[0] > 1, *pair) if op is aten.where.self else pair
            operands = (pair[0], *pair) if op in (aten.addcmul.default, aten.addcdiv.default) else operands
            try:
                expected = _described(op(*operands))
            except RuntimeError:  # which the kernel refuses
                continue
            fakes = [mode.from_tensor(operand) for operand in operands]
            with mode, RightLayouts():
                told = _described(op(*fakes))
            assert told == expected, [_described(operand) for operand in operands]
            compared += 1
    assert compared
