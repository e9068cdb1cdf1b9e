"""Two models that train against each other: two optimizers, one of them fed with what the other made, detached."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.usefixtures("alone")

STEPS = 5


class Pair(nn.Module):
    """A generator and a discriminator of small images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(6, 4 * 4 * 4),
            nn.Unflatten(1, (4, 4, 4)),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(4, 2, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 4, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout2d(0.2),
            nn.Flatten(),
            nn.Linear(4 * 4 * 4, 1),
        )

    def generate(self, noise: Tensor) -> Tensor:
        """f32[batch, 6] noise to f32[batch, 2, 8, 8] images."""
        return self.generator(noise)

    def discriminate(self, real: Tensor, made: Tensor) -> Tensor:
        """The discriminator's loss."""
        told_real, told_made = self.discriminator(real), self.discriminator(made.detach())
        return F.softplus(-told_real).mean() + F.softplus(told_made).mean()

    def deceive(self, made: Tensor) -> Tensor:
        """The generator's loss."""
        return F.softplus(-self.discriminator(made)).mean()


Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def _train(pair: Pair, compile_: Compile) -> list[Tensor]:
    generate, discriminate, deceive = map(compile_, (pair.generate, pair.discriminate, pair.deceive))
    of_generator = torch.optim.Adam(pair.generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
    of_discriminator = torch.optim.Adam(pair.discriminator.parameters(), lr=1e-2, betas=(0.5, 0.9))
    torch.manual_seed(3)
    losses = []
    for _ in range(STEPS):
        real, noise = torch.randn(5, 2, 8, 8), torch.randn(5, 6)
        made = generate(noise)
        loss = discriminate(real, made)
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        deceived = deceive(made)  # with the discriminator as it is now
        of_generator.zero_grad()
        deceived.backward()
        of_generator.step()
        losses += [loss.detach(), deceived.detach()]
    return losses


@pytest.mark.parametrize(
    "compile_",
    [
        lambda f: torch.compile(f, backend="dovetail", fullgraph=True, options={"verify": 1}),
        lambda f: dovetail.compile(f, verify=1),
    ],
    ids=["backend", "function"],
)
def test_two_optimizers(compile_: Compile) -> None:
    torch.manual_seed(0)
    eager = Pair()
    mine = copy.deepcopy(eager)
    expected = _train(eager, lambda f: f)
    actual = _train(mine, compile_)
    assert [loss.item() for loss in actual] == [loss.item() for loss in expected]
    assert len({loss.item() for loss in expected}) == 2 * STEPS
    for (name, theirs), own in zip(eager.state_dict().items(), mine.state_dict().values(), strict=True):
        assert torch.equal(own, theirs), name
    for (name, theirs), own in zip(eager.named_parameters(), mine.parameters(), strict=True):
        assert own.grad is not None
        assert theirs.grad is not None
        assert torch.equal(own.grad, theirs.grad), name
        assert own.grad.stride() == theirs.grad.stride(), name
