"""The copy that `slice_scatter` makes begins where its operand does, which had been moved; a view then named a
place in it."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (8,), generator=g).to(torch.float32)
    x0 = m0.as_strided((4, 1), (1, 1), 4)
    m2 = torch.randint(-4, 5, (4,), generator=g).to(torch.float32)
    x1 = m2.as_strided((4, 1), (1, 1), 0)
    return [x0, x1]


def program(x0, x1):
    v2 = aten.clone.default(x0)
    v3 = aten.slice.Tensor(v2, 0, 3, 4, 1)
    v5 = aten.slice_scatter.default(v2, v3, 0, 3, 4, 1)
    v6 = aten.as_strided.default(v5, [1, 1], [1, 1], 3)
    v15 = aten.cumsum.default(v3, 0)
    v34 = aten.copy_.default(x1, v6)
    return (v15,)
