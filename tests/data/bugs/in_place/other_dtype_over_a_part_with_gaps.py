"""A sum of another dtype was written over a part with gaps."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (16,), generator=g).to(torch.float32)
    x1 = m2.as_strided((4, 3), (3, 1), 4)
    return [x1]


def program(x1):
    v6 = aten.le.Tensor(x1, x1)
    v8 = aten.select.int(v6, 1, -3)
    v9 = aten.add.Tensor(v8, 1)
    v10 = aten.select_scatter.default(v6, v9, 1, -3)
    return (v10,)
