"""Which element counts where bytes are shared depends on the layout of what is copied onto them."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (5,), generator=g).to(torch.int32)
    x1 = m2.as_strided((2, 3, 1), (1, 1, 2), 1)
    return [x1]


def program(x1):
    v1, v2, v3, = aten.unbind.int(x1, 1)
    v5 = aten.flip.default(v1, [0])
    v6 = prims.view_scatter(aten.unbind.int, 0)(x1, v5, 1)
    v30 = aten.slice_copy.Tensor(v6, 0, 0, 2, 1)
    aten.copy_.default(x1, v30)
    return (v5,)
