"""What torch's C++ asks of data in a step: asked again in each call, and as in eager mode where the answer differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWN = torch.Generator().manual_seed(0)
ROWS = torch.randn(4, 6, generator=DRAWN)
SPECTRUM = torch.randn(5, 8, dtype=torch.complex64, generator=DRAWN)
DEFICIENT = torch.ones(4, 3)
FULL = torch.randn(4, 3, generator=DRAWN)
HOLED = torch.tensor([1.0, float("nan")])

# What the step computes from a weight and an argument, and the arguments of its calls.
STEPS: dict[str, tuple[Callable[[Tensor, Tensor], Any], list[Tensor]]] = {
    "cov": (lambda w, x: torch.cov(w * x).square().sum(), [ROWS, ROWS + 1, ROWS * 2]),
    "weights": (lambda w, x: torch.cov(w, aweights=x).square().sum(), [ROWS[0].abs(), torch.ones(6), torch.eye(6)[0]]),
    "corrcoef": (lambda w, x: torch.corrcoef(w + x).square().sum(), [ROWS, ROWS + 1, ROWS * 2]),
    "istft": (
        lambda w, x: torch.istft(SPECTRUM * w[0, 0], 8, window=x, center=False, length=8).square().sum(),
        [torch.ones(8), torch.ones(8) * 2, torch.hann_window(8) + 1],
    ),
    "equal": (
        lambda w, x: w.sum() * (2 if torch.equal(x, x.detach().clone()) else 3),
        [ROWS, ROWS * 2, HOLED, ROWS, HOLED],
    ),
    "sizes differ": (lambda w, x: w.sum() * (2 if torch.equal(x, x[1:]) else 3), [ROWS, ROWS]),
    "allclose": (
        lambda w, x: w.sum() * (2 if torch.allclose(x, torch.ones_like(x), atol=0.5) else 3),
        [torch.ones(2), torch.ones(2) * 1.2, torch.zeros(2), torch.ones(2)],
    ),
    "ranks": (lambda w, x: torch.linalg.lstsq(x, w[:, :2] + x[:, :2], driver="gelsd")[1].sum(), [FULL, FULL + 1]),
}


@pytest.mark.parametrize("name", STEPS)
def test_as_in_eager_mode(name: str) -> None:
    body, arguments = STEPS[name]
    seen = []
    for compiles in (False, True):
        weight = nn.Parameter(ROWS.clone())
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x: Tensor, weight: nn.Parameter = weight, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = body(weight, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = dovetail.compile_step(step) if compiles else step
        results = [(call(x.clone()), weight.detach().clone()) for x in (*arguments, *arguments)]
        seen.append(pytree.tree_leaves(results))
        if compiles:
            assert call.stats.calls > call.stats.eager_calls  # type: ignore[attr-defined]
    for expected, found in zip(*seen, strict=True):
        assert torch.equal(expected.nan_to_num(7.0), found.nan_to_num(7.0))


def test_windows_that_do_not_add_up_raise_eager_modes_error() -> None:
    call = dovetail.compile_step(lambda x: torch.istft(SPECTRUM, 8, window=x, center=False, length=8))
    for _ in range(3):
        call(torch.ones(8))
    with pytest.raises(RuntimeError, match="window overlap add min"):
        call(torch.zeros(8))


def test_ranks_below_full_run_in_eager_mode() -> None:
    """Eager mode gives no residuals there."""

    def residuals(x: Tensor) -> Tensor:
        return torch.linalg.lstsq(x, x + 1, driver="gelss")[1]

    call = dovetail.compile_step(residuals)
    assert torch.equal(call(FULL), residuals(FULL))
    assert torch.equal(call(FULL), residuals(FULL))
    assert torch.equal(call(DEFICIENT), residuals(DEFICIENT))
