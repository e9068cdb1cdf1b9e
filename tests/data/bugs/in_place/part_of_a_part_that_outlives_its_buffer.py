"""A copy of a part of a larger buffer was left out for a place in that buffer which what it was put into did not get."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (22,), generator=g).to(torch.float32)
    x1 = m2.as_strided((4, 5), (5, 1), 0)
    x2 = m2.as_strided((5,), (1,), 4)
    return [x1, x2]


def program(x1, x2):
    v1, v2 = prims.functional_form(checks.push_.default, (0,))([x2], x2)
    (
        v8,
        v9,
    ) = aten.split.Tensor(v2, 4, 0)
    v14 = aten.mul.Tensor(v2, v9)
    v24 = aten.clone.default(v9)
    v25 = prims.view_scatter(aten.view.default, None)(v9, v24, [1])
    v26 = aten.roll.default(v14, [1], [0])
    v28 = aten.sign.default(v24)
    aten.copy_.default(x1, v28)
    aten.copy_.default(x2, v26)
    return (v25,)
