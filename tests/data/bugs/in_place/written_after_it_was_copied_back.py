"""New contents lay in a donated input already; once that copy back was done, another result was made over them."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x0',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (6,), generator=g).to(torch.float32)
    x0 = m0.as_strided((2, 3), (3, 1), 0)
    m1 = torch.randint(-4, 5, (6,), generator=g).to(torch.float32)
    x2 = m1.as_strided((2, 3), (3, 1), 0)
    return [x0, x2]


def program(x0, x2):
    v1, v2 = aten.split.Tensor(x0, 1, 0)
    v4 = prims.view_scatter(aten.split.Tensor, 0)(x0, v1, 1, 0)
    v5 = aten.maximum.default(v4, x2)
    v19 = aten.gt.Scalar(v5, 0)
    v33 = aten.copy_.default(x0, v4)
    return (v33, v19)
