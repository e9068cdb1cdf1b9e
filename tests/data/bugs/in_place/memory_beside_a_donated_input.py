"""What lies between the elements of a donated input was written, though it is not donated."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x1',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (9,), generator=g).to(torch.float32)
    x1 = m2.as_strided((5,), (2,), 0)
    return [x1]


def program(x1):
    v12 = aten.as_strided.default(x1, [3, 2], [1, 3])
    v13 = aten.add.Tensor(v12, 1)
    v14 = aten.as_strided_scatter.default(x1, v13, [3, 2], [1, 3])
    return (v14,)
