"""Steps that cannot become one program. The line that is to blame is marked in each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.twins import Call, Twin

MARK = "# refused"


@dataclass(frozen=True)
class Refusal:
    """A step to refuse. says: words of the message that lead to the mistake, where that is not the marked line.

    needs_graph: of a result of a call before, which has none: eager mode cannot go on either, and says why.
    """

    name: str
    build: Callable[[], Twin]
    says: str = ""
    needs_graph: bool = False

    def __str__(self) -> str:
        return self.name


def _view_returned() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        F.cross_entropy(net(rows), labels).backward()
        opt.step()
        return net.first.weight.view(-1)  # refused

    return p.twin(step)


def _dtype_moved() -> Twin:
    p = Parts(optim.SGD)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        net.to(torch.float64)  # refused
        loss = F.cross_entropy(net(rows.double()), labels)
        loss.backward()
        opt.step()
        net.to(torch.float32)
        return loss

    return p.twin(step)


def _numpy() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        out = net(rows)
        F.cross_entropy(out, labels).backward()
        opt.step()
        return out.detach().numpy()  # refused

    return p.twin(step)

    return p.twin(step)


def _ownerless_write() -> Twin:
    """What a cache of the standard library holds is in nobody's hands."""
    p = Parts()
    net, opt = p.net, p.opt

    @cache
    def total() -> Tensor:
        return torch.zeros(())

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        total().add_(loss.detach())  # refused
        return loss

    return p.twin(step, attributes=lambda: {"total": total()})


def _next_batch() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt
    given = []

    def batches() -> Any:
        while True:
            given.append(len(given))
            yield p.batch(len(given))

    loader = batches()

    def step() -> Tensor:
        rows, labels = next(loader)  # refused
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        return loss

    return p.twin(step, call=lambda number: Call(()), attributes=lambda: {"given": given})


def _python_random() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), random.uniform(0.5, loss.item() + 1))  # refused
        opt.step()
        return loss

    return p.twin(step)


def _graph_of_before() -> Twin:
    """The penalty was computed before the first call, and its graph is kept."""
    p = Parts()
    net, opt, other = p.net, p.opt, nn.Linear(3, 3)
    penalty = other.weight.exp().sum()

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        other.zero_grad()
        loss = F.cross_entropy(net(rows), labels) + penalty  # refused
        loss.backward(retain_graph=True)
        opt.step()
        return loss.detach()

    side = p.twin(step)
    side.models["other"] = other
    return side


def _graph_kept() -> Twin:
    """What this call computes is kept with its graph, for the next one to go through."""
    p = Parts()
    net, opt, fixed, held = p.net, p.opt, nn.Linear(6, 4), [torch.zeros(())]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels) + held[0]  # refused
        loss.backward(retain_graph=True)
        held[0] = fixed(rows).square().mean()
        opt.step()
        return loss.detach()

    side = p.twin(step, attributes=lambda: {"held": held})
    side.models["fixed"] = fixed
    return side


class _Box:
    def __init__(self, item: Any) -> None:
        self.item = item

    def __del__(self) -> None:
        """What has this is not made again by runs."""


def _appended() -> Twin:
    p = Parts()
    losses: list[Any] = []
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        losses.append(_Box(loss.detach()))  # refused
        return loss

    return p.twin(step, attributes=lambda: {"losses": [box.item for box in losses]})


def _overlapping_write() -> Twin:
    """An argument is written in memory that another one lies in too."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        rows.mul_(0.5)  # refused
        loss = F.cross_entropy(net(rows + other), labels)
        loss.backward()
        opt.step()
        return loss

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows[:6], rows[1:], labels[:6]))

    return p.twin(step, call=call)


def _leaf_with_older_views() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        first = rows[0]
        rows.requires_grad_()  # refused
        loss = F.cross_entropy(net(rows + first), labels)
        loss.backward()
        opt.step()
        return loss.detach()

    return p.twin(step)


REFUSALS = (
    Refusal("a view of a parameter is returned", _view_returned),
    Refusal("the model is moved to another dtype", _dtype_moved),
    Refusal("numpy", _numpy),
    Refusal("a write to a tensor that nobody owns", _ownerless_write),
    Refusal("the next batch of an iterator", _next_batch),
    Refusal("random.random", _python_random),
    Refusal("a graph from before", _graph_of_before),
    Refusal("a graph is kept", _graph_kept, needs_graph=True),
    Refusal("objects with a finalizer are appended to a list", _appended),
    Refusal("an argument requires gradients when it has views", _leaf_with_older_views),
    Refusal("a write to overlapping arguments", _overlapping_write, "argument 0 shares memory with"),
)
