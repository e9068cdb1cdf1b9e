"""`view_copy` takes tensors of which there is no such view."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m4 = torch.randint(-4, 5, (20,), generator=g).to(torch.float32)
    x2 = m4.as_strided((4, 1, 2), (1, 1, 4), 4)
    return [x2]


def program(x2):
    v13 = aten.view_copy.default(x2, [8])
    return (v13,)
