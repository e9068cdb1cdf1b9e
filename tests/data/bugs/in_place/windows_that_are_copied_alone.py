"""A part was written into a copy whose elements share bytes."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m6 = torch.randint(-4, 5, (20,), generator=g).to(torch.float32)
    x3 = m6.as_strided((3, 6, 5), (2, 2, 1), 1)
    return [x3]


def program(x3):
    v7 = aten.slice.Tensor(x3, 0, 1, 3, 1)
    v10 = aten.slice_scatter.default(x3, v7, 0, 1, 3, 1)
    v12 = prims.view_scatter(aten.transpose.int, None)(v10, v10, 0, 0)
    v13 = aten.slice.Tensor(v12, 0, 2, 3, 1)
    v14 = aten.neg.default(v13)
    v15 = aten.slice_scatter.default(v12, v14, 0, 2, 3, 1)
    return (v15,)
