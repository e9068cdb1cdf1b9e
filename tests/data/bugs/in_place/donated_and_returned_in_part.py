"""A view of a donated input was returned; another part of it was copied into, so that it passed for new contents."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x1',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (52,), generator=g).to(torch.float32)
    x1 = m2.as_strided((4, 3, 4), (12, 4, 1), 4)
    return [x1]


def program(x1):
    v2 = aten.slice.Tensor(x1, 0, 0, 1, 2)
    v3 = aten.mul.Tensor(v2, 2)
    v4 = aten.slice_scatter.default(x1, v3, 0, 0, 1, 2)
    v23 = aten.flip.default(v4, [0])
    v32 = aten.slice.Tensor(x1, 0, 3, 4, 1)
    v33 = aten.copy_.default(v32, v3)
    return (v2, v23)
