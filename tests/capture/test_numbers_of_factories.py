"""Branches on numbers of tensors that the code makes of nothing: the branch is the same in every call."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DataDependentControlFlow


def _mask(x: Tensor) -> Tensor:
    mask = torch.triu(torch.full((4, 4), -math.inf), 1)
    return x + 1 if bool((mask == mask.T).all()) else x @ mask.exp()


def _written(x: Tensor) -> Tensor:
    counts = torch.zeros(3, dtype=torch.int64)
    counts[1] = 5
    counts.add_(torch.arange(3))
    return x * counts.max().item() if counts[0] < counts[1] else x


def _view_written(x: Tensor) -> Tensor:
    rows = torch.ones(4, 2)
    rows[2:].mul_(3)
    return x.repeat(int(rows.sum()) // 8, 1)


def _literal(x: Tensor) -> Tensor:
    return x.sum(0) if torch.tensor([1.0, 2.0]).mean() > 1 else x


_PROGRAMS: tuple[Callable[[Tensor], Tensor], ...] = (_mask, _written, _view_written, _literal)


@pytest.mark.parametrize("program", _PROGRAMS)
@pytest.mark.parametrize("door", ["compile", "freeze"])
def test_the_branch_is_eagers(program: Callable[[Tensor], Tensor], door: str) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return program(x)

    x = torch.randn(3, 4)
    made = dovetail.compile(program) if door == "compile" else dovetail.freeze(Model(), (x,))
    for _ in range(2):
        assert torch.equal(made(x), program(x))


def _drawn(x: Tensor) -> Tensor:
    return x + 1 if torch.rand(4).sum() > 2 else x


def _given(x: Tensor) -> Tensor:
    mask = torch.zeros(4)
    mask.copy_(x[0])
    return x + 1 if mask.sum() > 0 else x


def _left_alone(x: Tensor) -> Tensor:
    rows = torch.empty(4)
    rows[:2] = 1
    rows[2:] = x[0, :2]
    return x + 1 if rows[0] > 0 else x


def _written_unsaid(x: Tensor) -> Tensor:
    """The schema of the operator does not say that it writes these."""
    mean, variance = torch.zeros(4), torch.ones(4)
    y = nn.functional.batch_norm(x, mean, variance, training=True)
    return y + 1 if mean.abs().sum() > 0 else y


@pytest.mark.parametrize("program", [_drawn, _given, _left_alone, _written_unsaid])
def test_numbers_of_inputs_and_draws_are_not_known(program: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(DataDependentControlFlow):
        dovetail.compile(program)(torch.randn(3, 4))


class _Translates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 2, 1, 1, 24, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = self.net.generate_square_subsequent_mask(target.shape[1])
        found: Tensor = self.net(source, target, tgt_mask=mask)
        return found


def test_a_transformer_with_a_causal_mask() -> None:
    """It looks whether the mask is causal, to choose a kernel."""
    torch.manual_seed(0)
    model = _Translates().eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 5, 16), torch.randn(2, 4, 16)))
    for batch in (2, 3):
        given = torch.randn(batch, 5, 16), torch.randn(batch, 4, 16)
        with torch.no_grad():
            assert torch.equal(frozen(*given), model(*given))
