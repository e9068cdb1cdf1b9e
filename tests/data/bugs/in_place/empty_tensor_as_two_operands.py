"""torch refuses to write a tensor that is another operand too, though it be empty."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (7,), generator=g).to(torch.float32)
    x1 = m2.as_strided((3, 1), (1, 1), 4)
    return [x1]


def program(x1):
    v3 = aten.arange.start_step(0, 1, 1, dtype=torch.int64)
    v4 = aten.index_select.default(x1, 1, v3)
    v7 = aten.diagonal.default(v4, 1)
    v9 = aten.arange.start_step(0, 1, 1, dtype=torch.int64)
    v14, v15 = prims.functional_form(checks.push_.default, (0,))([v7], v7)
    return (v9,)
