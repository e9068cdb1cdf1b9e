"""A broadcast copy that became a view was described with the strides of the copy."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (8,), generator=g).to(torch.float32)
    x0 = m0.as_strided((2,), (1,), 4)
    return [x0]


def program(x0):
    v1 = aten.select.int(x0, 0, -1)
    v2 = aten.cumsum.default(v1, 0)
    v3 = aten.select_scatter.default(x0, v2, 0, -1)
    checks.demand.default(v3)
    v16 = aten.copy.default(v3, v2)
    aten.copy_.default(x0, v16)
    return (x0,)
