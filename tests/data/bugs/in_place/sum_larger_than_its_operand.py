"""A sum was made in the memory of an operand of fewer dimensions, because it was only copied afterwards."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (90,), generator=g).to(torch.float32)
    x0 = m0.as_strided((6,), (1,), 1)
    x1 = m0.as_strided((5, 3, 6), (18, 6, 1), 0)
    return [x0, x1]


def program(x0, x1):
    v3 = aten.floor.default(x0)
    v5 = aten.add.Tensor(v3, x1, alpha=2)
    aten.copy_.default(x1, v5)
    return (x1,)
