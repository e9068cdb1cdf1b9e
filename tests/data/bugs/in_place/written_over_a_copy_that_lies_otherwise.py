"""A result was written over a shared copy that does not lie as it is described."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ('x1',)


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    m2 = torch.randint(-4, 5, (150,), generator=g).to(torch.float32)
    x1 = m2.as_strided((5, 6, 5), (30, 1, 6), 0)
    return [x1]


def program(x1):
    v1 = aten.clone.default(x1, memory_format=torch.contiguous_format)
    v2 = aten.arange.start_step(3, 5, 1, dtype=torch.int64)
    v3 = aten.index_select.default(x1, 2, v2)
    v5 = aten.index_copy.default(x1, 2, v2, v3)
    v6 = aten.copy.default(v5, v1)
    v12 = aten.add.Tensor(v6, 1)
    v14 = aten.add.Tensor(v6, v12, alpha=2)
    return (v14,)
