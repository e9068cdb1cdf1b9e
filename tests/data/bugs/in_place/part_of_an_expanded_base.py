"""The part that is replaced counts as unread, but in an expanded base other elements lie there."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x2',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m4 = torch.randint(-4, 5, (3,), generator=g).to(torch.float32)
    x2 = m4.as_strided((4,), (0,), 2)
    return [x2]


def program(x2):
    v3 = aten.select_copy.int(x2, 0, 3)
    v5 = aten.add.Tensor(v3, 1)
    v6 = aten.select_scatter.default(x2, v5, 0, 1)
    return (v6,)
