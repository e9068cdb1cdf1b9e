"""A draw that nobody reads overwrote what an input had been left with."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x0', 'x1')


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (4,), generator=g).to(torch.float32)
    x0 = m0.as_strided((2,), (1,), 0)
    x1 = m0.as_strided((2,), (1,), 0)
    return [x0, x1]


def program(x0, x1):
    v7 = aten.slice_scatter.default(x1, x0, 0, 0, 2, 1)
    (v12,) = prims.functional_form(aten.normal_.default, (0,))(v7, 0.0, 1.0)
    aten.copy_.default(x0, v7)
    return (x0,)
