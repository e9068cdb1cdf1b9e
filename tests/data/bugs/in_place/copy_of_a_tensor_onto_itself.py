"""In `copy(a, a)` the contents of the second operand are read, if not those of the first."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (96,), generator=g).to(torch.float32)
    x1 = m2.as_strided((6, 4, 4), (16, 1, 4), 0)
    return [x1]


def program(x1):
    v1 = aten.maximum.default(x1, x1)
    v2 = aten.add.Tensor(x1, v1)
    v3 = aten.gt.Scalar(v2, 0)
    v4 = aten.where.self(v3, v2, v1)
    v14 = aten.copy.default(v4, v4)
    return (v14,)
