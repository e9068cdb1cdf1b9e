"""A result lived in a donated input that was copied into before the result was read."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x0',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (6,), generator=g).to(torch.float64)
    x0 = m0.as_strided((4,), (1,), 0)
    return [x0]


def program(x0):
    v5 = aten.mul.Tensor(x0, 2)
    v16 = aten.sum.dim_IntList(v5, [0])
    v17 = aten.gt.Scalar(v5, 0)
    v18 = aten.index_put.default(x0, [v17], v16)
    v41 = aten.copy_.default(x0, v5)
    return (v18,)
