"""A copy kept the offset of a shared operand, and places in it were counted from elsewhere."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (19,), generator=g).to(torch.float64)
    x0 = m0.as_strided((4, 4), (4, 1), 1)
    return [x0]


def program(x0):
    v1 = aten._to_copy.default(x0, dtype=torch.float64)
    v3 = aten.neg.default(v1)
    v4 = aten.slice_scatter.default(v1, v3, 1, 0, 4, 1)
    v5 = aten.view.default(v4, [16])
    v6 = prims.view_scatter(aten.view.default, None)(v4, v5, [16])
    v18 = aten.as_strided.default(v6, [3, 1], [1, 1], 2)
    v19 = aten.as_strided_scatter.default(v6, v18, [3, 1], [1, 1], 2)
    return (v6, v19)
