"""Numbers that lie in memory as large as what they are averages of: nothing is made there that lives on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.ops.facts import averages_in_place

ROWS, WIDTH = 64, 256
LOSSES = ("binary_cross_entropy", "huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss", "kl_div")


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_which_losses_lie_in_large_memory(name: str) -> None:
    if name in ("l1_loss", "kl_div"):  # made of several operators
        assert getattr(F, name)(torch.ones(8, 8), torch.zeros(8, 8)).untyped_storage().nbytes() == 4
        return
    operator = getattr(torch.ops.aten, name).default
    loss = operator(torch.ones(8, 8), torch.zeros(8, 8))
    assert averages_in_place(operator) == (loss.untyped_storage().nbytes() > 4)


def _training(loss: Callable[[Tensor, Tensor], Tensor], parts: int) -> Callable[[Tensor], Tensor]:
    """A step that accumulates gradients over parts of its batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in rows.chunk(parts):
            share = loss(net(part), part) / parts
            share.backward()
            total = total + share.detach()
        optimizer.step()
        return total

    return step


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_a_share_of_a_loss_does_not_hold_the_loss_of_every_element(
    loss: Callable[[Tensor, Tensor], Tensor], parts: int
) -> None:
    eager, step = _training(loss, parts), dovetail.compile_step(_training(loss, parts), executors=("aten",))
    rows = torch.randn(ROWS * parts, WIDTH)
    for _ in range(2):
        wanted, found = measure_peak(eager, rows), measure_peak(step, rows)
        assert torch.equal(found.result, wanted.result)
        assert found.peak_bytes <= wanted.peak_bytes
