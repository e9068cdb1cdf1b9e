"""Nothing is written where the part lies in its place already, so a later read of the part hinders nothing."""

import torch

from dovetail.ops import prims
from tests.harness import effect_operators

aten = torch.ops.aten
checks = effect_operators.OPERATORS
donated = ()


def inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    return []


def program():
    v9 = aten.full.default([2, 5], 2, dtype=torch.int64)
    v11, v12, = aten.split.Tensor(v9, 1, 0)
    v13 = aten.cumsum.default(v11, 0)
    v14 = prims.view_scatter(aten.split.Tensor, 0)(v9, v13, 1, 0)
    v15 = aten.slice.Tensor(v14, 0, 1, 2, 1)
    v23 = aten.gt.Scalar(v15, 0)
    v24 = aten.where.self(v23, v15, v13)
    return (v24,)
