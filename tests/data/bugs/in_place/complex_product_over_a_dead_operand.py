"""A complex result was made over its operand, which lay in memory that had died."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (6,), generator=g).to(torch.complex64)
    x0 = m0.as_strided((6,), (1,), 0)
    return [x0]


def program(x0):
    v1 = aten.add.Tensor(x0, x0)
    checks.note.default(v1)
    v13 = aten.add.Tensor(x0, 1)
    v15 = aten.mul.Tensor(v13, 2)
    return (v15,)
