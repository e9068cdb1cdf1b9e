"""Recurrent layers over packed sequences: refused by name in steps and in frozen modules, and left to eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import dovetail
from dovetail.errors import UnsupportedTensor


class Tagger(nn.Module):
    """A tagger over sentences of other lengths."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.head(pad_packed_sequence(packed, batch_first=True)[0])


def trained(kind: Any, wrap: Any, **options: Any) -> tuple[list[Any], Any]:
    """What five steps leave behind. wrap: what is done to the step, or to the model."""
    torch.manual_seed(0)
    net = Tagger(kind)
    optimizer = torch.optim.Adam(net.parameters())

    def step(x: Tensor, lengths: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x, lengths).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = wrap(step, **options) if wrap is not None else step
    losses = [run(torch.randn(3, 6, 4), torch.tensor([n + 1, 4, 2])) for n in range(5)]
    return [x.tolist() for x in (*losses, *net.parameters())], run


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_step_says_what_it_is_and_eager_mode_goes_on(kind: Any) -> None:
    with pytest.raises(UnsupportedTensor, match=r"a packed sequence(.|\n)*in forward(.|\n)*on_unsupported='eager'"):
        trained(kind, dovetail.compile_step)
    with pytest.warns(UserWarning, match="runs in eager mode from now on"):
        found, run = trained(kind, dovetail.compile_step, on_unsupported="eager")
    assert found == trained(kind, None)[0]
    assert run.stats.captures == 0


def test_freezing_says_what_it_is() -> None:
    with pytest.raises(UnsupportedTensor, match="a packed sequence"):
        dovetail.freeze(Tagger(nn.LSTM).eval(), (torch.randn(3, 6, 4), torch.tensor([6, 4, 2])))
