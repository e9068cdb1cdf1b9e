"""A copy was left out whose reader names a place in its storage."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.arange(4.0)
    x0 = m0.as_strided((3,), (1,), 1)
    return [x0]


def program(x0):
    v1 = aten.clone.default(x0)
    v3 = aten.as_strided_copy.default(v1, [1, 2], [4, 1], 0)
    return (v3,)
