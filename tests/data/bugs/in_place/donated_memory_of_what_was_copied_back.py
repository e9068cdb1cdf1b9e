"""A result was made in a donated input that shares bytes with one that had received its last contents."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x2', 'x3')


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m3 = torch.randint(-4, 5, (18,), generator=g).to(torch.float32)
    x2 = m3.as_strided((4, 4, 1), (4, 1, 1), 2)
    x3 = m3.as_strided((4, 1), (1, 1), 1)
    return [x2, x3]


def program(x2, x3):
    v2 = aten.select.int(x2, 1, 3)
    v3 = aten.relu.default(v2)
    v9 = aten.maximum.default(v2, v2)
    v11 = aten.addcmul.default(v9, v9, x2, value=2)
    v14 = aten.fill.Scalar(v11, 2)
    v15 = aten.copy_.default(x3, v3)
    return (v15, v14)
