"""A part was made in a larger buffer that nobody read any more when the part still waited to be copied."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (10,), generator=g).to(torch.float32)
    x1 = m0.as_strided((2,), (2,), 0)
    return [x1]


def program(x1):
    v1 = aten.arange.start_step(0, 2, 1, dtype=torch.int64)
    v6 = aten.select.int(v1, 0, -2)
    v7 = aten.add.Tensor(v6, 1)
    v8 = aten.select_scatter.default(v1, v7, 0, -2)
    v12 = aten.mul.Tensor(x1, 2)
    v13 = aten.div.Tensor(v8, 2)
    checks.demand.default(v12)
    aten.copy_.default(x1, v7)
    return (v13,)
