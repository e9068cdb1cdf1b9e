"""What is not part of a donated input is not given away, and was written through a shared copy of it."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x1',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (13,), generator=g).to(torch.float32)
    x1 = m2.as_strided((1, 4, 6), (1, 1, 1), 4)
    return [x1]


def program(x1):
    v1 = aten.as_strided.default(x1, [1, 2], [2, 1], 2)
    v2 = aten.clone.default(v1)
    v3 = aten.add.Tensor(v2, 1)
    v4 = aten.as_strided_scatter.default(x1, v3, [1, 2], [2, 1], 2)
    return (v4,)
