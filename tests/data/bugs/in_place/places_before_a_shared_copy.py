"""A view named a place before a copy, which was left out, where its operand has no memory."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (3,), generator=g).to(torch.int32)
    x1 = m2.as_strided((1,), (1,), 2)
    m4 = torch.randint(-4, 5, (3,), generator=g).to(torch.int32)
    x3 = m4.as_strided((1,), (1,), 2)
    return [x1, x3]


def program(x1, x3):
    v1 = aten.ne.Scalar(x3, 1)
    v2 = aten._to_copy.default(v1, dtype=torch.int32)
    v3 = aten.copy.default(x1, v2)
    v6 = aten.as_strided.default(v3, [1, 3], [3, 1], 0)
    return (v6,)
