"""Views of the copy that a writing operator got were described on another storage than the copy."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m0 = torch.randint(-4, 5, (31,), generator=g).to(torch.float32)
    x0 = m0.as_strided((4, 4), (8, 2), 0)
    return [x0]


def program(x0):
    v2 = aten.rsub.Scalar(x0, 1)
    v3, v4, v5 = prims.functional_form(checks.push_.default, (0,))([v2, x0], x0)
    v12, v13, v14, v15 = aten.split.Tensor(v5, 1, 1)
    return (v14,)
