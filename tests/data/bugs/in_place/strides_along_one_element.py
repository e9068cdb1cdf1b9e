"""Torch refuses an operand at the place of the result if their strides differ, though only along a dimension of
one element."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m4 = torch.randint(-4, 5, (30,), generator=g).to(torch.float32)
    x2 = m4.as_strided((5, 6, 1), (6, 1, 1), 0)
    x3 = m4.as_strided((5, 6, 1), (6, 1, 6), 0)
    return [x2, x3]


def program(x2, x3):
    v24 = aten.pow.Tensor_Scalar(x2, 2)
    aten.copy_.default(x3, v24)
    return (x2,)
