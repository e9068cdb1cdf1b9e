"""A copy of a base alone has not the places around it that a strided view names."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (7,), generator=g).to(torch.float32)
    x1 = m2.as_strided((6,), (1,), 1)
    m4 = torch.randint(0, 2, (76,), generator=g).to(torch.int64)
    x2 = m4.as_strided((6, 2, 6), (12, 6, 1), 2)
    return [x1, x2]


def program(x1, x2):
    v13, v14, = aten.unbind.int(x2, 1)
    v17 = aten.clone.default(v14)
    v18 = aten.select.int(v17, 1, -2)
    v20 = aten.select_scatter.default(v17, v18, 1, -2)
    v21, v22, v23, v24, v25, v26, = aten.unbind.int(v20, 0)
    v32 = aten.select.int(v22, 0, 3)
    v33 = aten.select_scatter.default(v22, v32, 0, 3)
    v34 = aten.as_strided.default(v33, [3, 3], [4, 1], 0)
    v35 = aten.sub.Tensor(v34, v34)
    v37 = aten.as_strided_scatter.default(v33, v35, [3, 3], [4, 1], 0)
    aten.copy_.default(x1, v37)
    return (v26,)
