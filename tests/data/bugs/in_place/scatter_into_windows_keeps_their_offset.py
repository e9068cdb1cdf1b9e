"""A scatter into windows that overlap keeps their offset, said the program, and the checker did not believe it."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (13,), generator=g).to(torch.float32)
    x0 = m0.as_strided((5, 1, 3), (1, 2, 2), 4)
    m4 = torch.randint(-4, 5, (18,), generator=g).to(torch.float32)
    x3 = m4.as_strided((5, 1, 3), (3, 3, 1), 1)
    return [x0, x3]


def program(x0, x3):
    v1 = aten.slice.Tensor(x0, 2, 1, 2, 3)
    v3 = aten.slice_scatter.default(x0, v1, 2, 1, 2, 3)
    v4, v5, v6, = aten.split.Tensor(v3, 1, 2)
    v7 = prims.view_scatter(aten.split.Tensor, 2)(v3, v6, 1, 2)
    v8 = aten.transpose.int(v7, 1, 1)
    v44 = aten.copy_.default(x3, v8)
    return (v5,)
