"""Gradients of batch norms lie on fakes where the kernels put them, whatever the layouts of their operands."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from dovetail.torch_compat.fake_layouts import as_laid_out, run_on_fakes

aten = torch.ops.aten


def _laid_out(shape: tuple[int, ...]) -> list[Tensor]:
    orders = list(itertools.permutations(range(len(shape))))
    permuted = [torch.rand([shape[p] for p in o]).permute([o.index(i) for i in range(len(shape))]) for o in orders]
    spread = torch.rand([2 * size for size in shape])[tuple(slice(None, None, 2) for _ in shape)]
    return [*permuted, spread, torch.rand(shape[:1] + (1,) * (len(shape) - 1)).expand(shape)]


@pytest.mark.parametrize("shape", [(8, 4), (4, 1), (2, 4, 3), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("is_training", [True, False])
def test_batch_norm_and_its_gradient(shape: tuple[int, ...], is_training: bool) -> None:
    given = _laid_out(shape)
    weight = torch.ones(shape[1])
    for x, gradient in itertools.product(given[::2], given):
        made = (x, weight, weight, weight.clone(), weight.clone(), is_training, 0.1, 1e-5)
        result, mean, deviation = aten.native_batch_norm.default(*made)
        saved = (gradient, x, weight, weight, weight, mean, deviation, is_training, 1e-5, [True] * 3)
        for op, args, real in (
            (aten.native_batch_norm.default, made, result),
            (aten.native_batch_norm_backward.default, saved, aten.native_batch_norm_backward.default(*saved)[0]),
        ):
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(part) if isinstance(part, Tensor) else part for part in args]
                found = as_laid_out(op, fakes, run_on_fakes(op, fakes, {}))[0]
            assert found.stride() == real.stride(), (op, x.stride(), gradient.stride())
