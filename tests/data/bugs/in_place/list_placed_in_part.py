"""Of two written arguments the first had been placed when the second was found to be read later."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (24,), generator=g).to(torch.float32)
    x0 = m0.as_strided((2, 3, 4), (12, 4, 1), 0)
    return [x0]


def program(x0):
    v1 = aten.arange.start_step(0, 2, 1, dtype=torch.int64)
    v2 = aten.index_select.default(x0, 0, v1)
    v4 = aten.view.default(v1, [2, 1, 1])
    v5 = aten.scatter_add.default(x0, 0, v4, v2)
    v9, v10, v11 = prims.functional_form(checks.push_.default, (0,))([v5, v2], v2)
    v12 = aten.roll.default(v2, [1], [0])
    return (v4, v9, v12)
