"""A part kept its buffer alive longer than what it was put into was."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (63,), generator=g).to(torch.float32)
    x0 = m0.as_strided((6, 5), (10, 2), 4)
    return [x0]


def program(x0):
    v2 = aten.add.Tensor(x0, 1)
    v3 = aten.select.int(v2, 0, -4)
    v4 = aten.cumsum.default(v3, 0)
    v5 = aten.select_scatter.default(v2, v4, 0, -4)
    v7 = aten.flip.default(v5, [0])
    v8 = prims.view_scatter(aten.transpose.int, None)(v5, v7, 1, 1)
    v29, v30, v31, v32, v33 = aten._native_batch_norm_legit_functional.default(v8, None, None, v4, v4, True, 0.1, 1e-05)
    return (v33,)
