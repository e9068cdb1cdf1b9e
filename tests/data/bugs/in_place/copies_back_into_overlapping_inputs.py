"""New contents were made in an input, part of which is another input that gets new contents before they are read."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (22,), generator=g).to(torch.float32)
    x0 = m0.as_strided((4,), (1,), 0)
    x1 = m0.as_strided((5, 4), (4, 1), 2)
    return [x0, x1]


def program(x0, x1):
    v7 = aten.add.Tensor(x1, 1)
    v8 = aten.slice.Tensor(v7, 0, 3, 4, 1)
    v11 = aten.view.default(v8, [4])
    v18 = aten.copy_.default(x0, v11)
    v19 = aten.copy_.default(x1, v7)
    return (v19,)
