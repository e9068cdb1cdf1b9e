"""Nothing is written where the part lies in its place already, so a later read of the part hinders nothing."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m4 = torch.randint(-4, 5, (10,), generator=g).to(torch.float32)
    x2 = m4.as_strided((6,), (1,), 2)
    return [x2]


def program(x2):
    v3 = aten.add.Tensor(x2, 1)
    v4 = aten.select.int(v3, 0, 5)
    v5 = aten.neg.default(v4)
    v6 = aten.select_scatter.default(v3, v5, 0, 5)
    v8 = aten.gt.Tensor(v6, v5)
    return (v8,)
