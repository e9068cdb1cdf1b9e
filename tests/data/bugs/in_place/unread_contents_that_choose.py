"""What only lends its layout need not be right, but where numbers choose elements, an operator fails on wrong
ones."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.arange(4)
    x0 = m0.as_strided((4,), (1,), 0)
    m1 = torch.randint(-4, 5, (4,), generator=g).to(torch.float32)
    x1 = m1.as_strided((4,), (1,), 0)
    return [x0, x1]


def program(x0, x1):
    v1 = aten.clone.default(x0)
    v4 = aten.mul.Tensor(x0, 1)
    v2 = aten.add.Tensor(v4, 90)
    v5 = aten.index_select.default(x1, 0, v4)
    v6 = aten.copy.default(v5, x1)
    return (v6, v2)
