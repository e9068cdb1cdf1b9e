"""A copy was left out, and what replaced a part of it copied all memory around it."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(0, 2, (16,), generator=g).to(torch.int64)
    x0 = m0.as_strided((5, 3), (3, 1), 1)
    return [x0]


def program(x0):
    v2 = aten.slice.Tensor(x0, 0, 3, 5, 2)
    v5 = aten.clone.default(v2)
    v8 = aten.slice.Tensor(v5, 1, 2, 3, 1)
    v10 = aten.slice_scatter.default(v5, v8, 1, 2, 3, 1)
    return (v10,)
