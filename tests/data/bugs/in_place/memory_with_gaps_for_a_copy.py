"""A copy was left out for its operand, whose memory has gaps, and which nobody needed any more."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (11,), generator=g).to(torch.int32)
    x0 = m0.as_strided((6,), (1,), 0)
    x1 = m0.as_strided((6,), (2,), 0)
    m3 = torch.randint(-4, 5, (6,), generator=g).to(torch.float32)
    x2 = m3.as_strided((6,), (1,), 0)
    return [x0, x1, x2]


def program(x0, x1, x2):
    v1 = prims.view_scatter(aten.view.default, None)(x1, x1, [6])
    v2 = aten.transpose_copy.int(v1, 0, 0)
    v3, v4, v5 = prims.functional_form(checks.push_.default, (0,))([x2, x2], x2)
    v14 = aten.sum.default(x1)
    aten.copy_.default(x0, v2)
    return (v14,)
