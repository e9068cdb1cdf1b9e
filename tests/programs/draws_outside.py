"""Augmentations and schedules of data that are drawn by NumPy and by Python, and parameters that get other memory."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.programs.harness import STEP, Made, Wrap, program, some


def _batches() -> list[tuple[Tensor, ...]]:
    return some(lambda: (torch.randn(8, 6), torch.randint(0, 3, (8,))))


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3))


@program(STEP)
def mixed_by_rows(wrap: Wrap) -> Made:
    net, rng = _net(), np.random.default_rng(1)
    optimizer = optim.AdamW(net.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        order = torch.from_numpy(rng.permutation(len(x)))
        part = torch.tensor(rng.beta(0.4, 0.4, size=len(x)), dtype=x.dtype)
        part = torch.maximum(part, 1 - part)
        optimizer.zero_grad()
        out = net(part[:, None] * x + (1 - part[:, None]) * x[order])
        one, other = (F.cross_entropy(out, labels, reduction="none") for labels in (y, y[order]))
        loss = (part * one + (1 - part) * other).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, _batches(), {"net": net, "optimizer": optimizer})


def _spans(rng: np.random.Generator, shape: tuple[int, int], chance: float, length: int) -> np.ndarray:
    """Spans to hide, of one length; how many there are in a row is drawn as well."""
    hidden = np.zeros(shape, dtype=bool)
    for row in range(shape[0]):
        count = int(chance * shape[1] / length + rng.random())
        starts = rng.choice(shape[1] - length + 1, count, replace=False)
        for start in starts:
            hidden[row, start : start + length] = True
    return hidden


@program(STEP)
def hidden_spans(wrap: Wrap) -> Made:
    net, rng = _net(), np.random.default_rng(2)
    fill = nn.Parameter(torch.randn(6))
    optimizer = optim.SGD([*net.parameters(), fill], lr=0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.from_numpy(_spans(rng, (x.shape[0], x.shape[1]), 0.5, 2))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(torch.where(hidden, fill, x)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, _batches(), {"net": net, "fill": fill, "optimizer": optimizer})


@program(STEP)
def negatives_of_a_replay_buffer(wrap: Wrap) -> Made:
    net, draws = _net(), random.Random(3)
    past = torch.randn(20, 6)
    optimizer = optim.Adam(net.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        chosen = draws.sample(range(len(past)), 4)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) + net(past[chosen]).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, _batches(), {"net": net, "past": past, "optimizer": optimizer})


@program(STEP)
def twins_that_change_places(wrap: Wrap) -> Made:
    net, other = _net(), _net()
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) + F.mse_loss(net(x), other(x).detach())
        loss.backward()
        optimizer.step()
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            mine.data, theirs.data = theirs.data, mine.data
        return loss.detach()

    return Made(step, _batches(), {"net": net, "other": other, "optimizer": optimizer})


@program(STEP)
def weights_on_one_buffer(wrap: Wrap) -> Made:
    net = _net()
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        flat = nn.utils.parameters_to_vector(net.parameters()).detach().clamp(-1, 1)
        nn.utils.vector_to_parameters(flat, net.parameters())
        return loss.detach()

    return Made(step, _batches(), {"net": net, "optimizer": optimizer})
