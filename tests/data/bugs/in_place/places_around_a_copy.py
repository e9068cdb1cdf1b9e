"""The checker did not know that a copy with its offset takes along what lies around its operand."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (75,), generator=g).to(torch.float32)
    x1 = m0.as_strided((4, 6), (6, 1), 4)
    return [x1]


def program(x1):
    v2 = aten.copy.default(x1, x1)
    v3 = aten.select.int(v2, 0, 0)
    v4 = aten.mul.Tensor(v3, 2)
    v5 = aten.select_scatter.default(v2, v4, 0, 0)
    v6 = aten.as_strided.default(v5, [3, 3], [3, 1], 1)
    return (v6,)
