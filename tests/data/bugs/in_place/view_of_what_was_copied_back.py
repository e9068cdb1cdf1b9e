"""A copy back ran after a view of what it gives."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (6,), generator=g).to(torch.float32)
    x0 = m0.as_strided((4,), (1,), 2)
    m2 = torch.randint(-4, 5, (19,), generator=g).to(torch.float64)
    x1 = m2.as_strided((4, 4), (4, 1), 1)
    return [x0, x1]


def program(x0, x1):
    v2 = aten.arange.start_step(1, 4, 2, dtype=torch.int64)
    v8 = aten.copy_.default(x1, x0)
    aten.copy_.default(x0, x0)
    v9 = aten.slice.Tensor(x0, 0, 0, 4, 3)
    aten.copy_.default(v9, v2)
    aten.copy_.default(x0, x0)
    return (v8,)
