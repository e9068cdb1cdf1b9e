"""A copy of a base has no room for a part that lies beside it in memory."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (12,), generator=g).to(torch.float32)
    x2 = m2.as_strided((6, 1, 4), (1, 1, 1), 1)
    return [x2]


def program(x2):
    v9 = aten._to_copy.default(x2, dtype=torch.float32)
    v16 = aten.slice.Tensor(v9, 0, 1, 3, 2)
    v19 = aten.slice_scatter.default(v9, v16, 0, 1, 3, 2)
    v27 = aten.as_strided.default(v19, [3], [1], 11)
    v40 = aten.as_strided.default(v27, [2], [1], 7)
    v42 = aten.as_strided_scatter.default(v27, v40, [2], [1], 7)
    return (v42,)
