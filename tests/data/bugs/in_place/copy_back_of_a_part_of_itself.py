"""The new contents of an input were made in it, and a view of them was then copied over them."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (6,), generator=g).to(torch.float32)
    x0 = m0.as_strided((6,), (1,), 0)
    return [x0]


def program(x0):
    v1 = aten.add.Tensor(x0, 1)
    v2 = aten.slice.Tensor(v1, 0, 4, 5)
    aten.copy_.default(x0, v2)
    return (x0,)
