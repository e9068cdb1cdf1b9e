"""State of unusual kinds, and numbers on the host that a step reads and writes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.twins import Call, Twin


def _trained(model: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], opt: optim.Optimizer) -> Twin:
    """The plain step for a model with a mean squared loss."""

    def step(rows: Tensor, wanted: Tensor) -> Tensor:
        opt.zero_grad()
        loss = (model(rows) - wanted).abs().square().mean()
        loss.backward()
        opt.step()
        return loss

    return Twin({"step": step}, lambda number: Call(batch(number)), {"model": model}, {"opt": opt})


def _batch(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[int], Any]:
    def make(number: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(number % 3)
        return tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)

    return make


def _lazy() -> Twin:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(8, 3))
    return _trained(model, _batch((5, 6), (5, 3)), optim.SGD(model.parameters(), lr=0.1))


class _Recurrent(nn.Module):
    """An LSTM that goes on from the state it had; the state is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 6, batch_first=True)
        self.register_buffer("hidden", torch.zeros(1, 5, 6))
        self.register_buffer("kept", torch.zeros(1, 5, 6), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """f32[5, time, 4] to f32[5, time, 6]."""
        out, (hidden, kept) = self.cell(rows, (self.hidden.clone(), self.kept.clone()))
        with torch.no_grad():
            self.hidden.copy_(hidden)
            self.kept.copy_(kept)
        return out


def _recurrent() -> Twin:
    model = _Recurrent()
    return _trained(model, _batch((5, 3, 4), (5, 3, 6)), optim.Adam(model.parameters(), lr=0.01))


def _gru() -> Twin:
    cell = nn.GRU(4, 6, num_layers=2, dropout=0.3, bidirectional=True)
    opt = optim.Adam(cell.parameters(), lr=0.01)

    def step(rows: Tensor, wanted: Tensor) -> Tensor:
        opt.zero_grad()
        loss = (cell(rows)[0] - wanted).square().mean()
        loss.backward()
        opt.step()
        return loss

    batch = _batch((3, 5, 4), (3, 5, 12))
    return Twin({"step": step}, lambda number: Call(batch(number)), {"cell": cell}, {"opt": opt})


def _renormed() -> Twin:
    """An embedding that writes its weights in forward."""
    table = nn.Embedding(9, 4, max_norm=0.7)
    opt = optim.SGD(table.parameters(), lr=0.5)

    def step(items: Tensor, wanted: Tensor) -> Tensor:
        opt.zero_grad()
        loss = (table(items) - wanted).square().mean()
        loss.backward()
        opt.step()
        return loss

    batch = _batch((5, 4))
    return Twin({"step": step}, lambda k: Call(((torch.arange(5) + k) % 9, *batch(k))), {"table": table}, {"opt": opt})


def _flat_parameters() -> Twin:
    """All parameters are views of one vector, which a second optimizer step writes as a whole."""
    p = Parts(optim.SGD, momentum=0.9)
    sizes = [parameter.numel() for parameter in p.net.parameters()]
    flat = torch.cat([parameter.detach().flatten() for parameter in p.net.parameters()])
    for parameter, piece in zip(p.net.parameters(), flat.split(sizes), strict=True):
        parameter.data = piece.view_as(parameter)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        flat.mul_(0.99)
        return loss

    return p.twin(step, attributes=lambda: {"flat": flat})


def _flat_gradients() -> Twin:
    """Gradients are views of one vector, and stay so."""
    p = Parts(optim.SGD, momentum=0.9)
    flat = torch.zeros(sum(parameter.numel() for parameter in p.net.parameters()))
    pieces = flat.split([parameter.numel() for parameter in p.net.parameters()])
    for parameter, piece in zip(p.net.parameters(), pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        flat.zero_()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        flat.clamp_(-0.1, 0.1)
        opt.step()
        return flat.norm()

    return p.twin(step, attributes=lambda: {"flat": flat})


class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, rows: Tensor) -> Tensor:
        """c64[5, 4] to c64[5, 3]."""
        return rows @ self.weight


def _complex(make: Callable[..., optim.Optimizer]) -> Twin:
    model = _Complex()
    return _trained(model, _batch((5, 4), (5, 3), dtype=torch.complex64), make(model.parameters(), lr=0.01))


def _dtype(dtype: torch.dtype) -> Twin:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)).to(dtype)
    return _trained(model, _batch((5, 4), (5, 3), dtype=dtype), optim.AdamW(model.parameters(), lr=0.01))


class _Sizes(nn.Module):
    """Parameters without elements, without dimensions, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(2))
        self.linear = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        """f32[5, 4] to f32[5, 3]."""
        return torch.cat([self.linear(rows), self.empty]) * self.scale


def _sizes() -> Twin:
    model = _Sizes()
    return _trained(model, _batch((5, 4), (5, 3)), optim.AdamW(model.parameters(), lr=0.01))


def _channels_last() -> Twin:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3))
    model = model.to(memory_format=torch.channels_last)
    return _trained(model, _batch((2, 3, 8, 8), (2, 3, 4, 4)), optim.AdamW(model.parameters(), lr=0.01))


def _parametrized() -> Twin:
    parametrizations = nn.utils.parametrizations
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        nn.Linear(6, 3),
    )
    return _trained(model, _batch((5, 4), (5, 3)), optim.Adam(model.parameters(), lr=0.01))


def _own_generator() -> Twin:
    """Noise from a generator of the user's own."""
    p = Parts()
    net, opt, generator = p.net, p.opt, torch.Generator().manual_seed(9)

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        noise = torch.randn(rows.shape, generator=generator)
        loss = F.cross_entropy(net(rows + 0.1 * noise), labels)
        loss.backward()
        opt.step()
        return loss

    return p.twin(step, attributes=lambda: {"generator": generator.get_state()})


# --- numbers on the host ----------------------------------------------------------------------------------------------


def _queue() -> Twin:
    """A ring of keys with a place on the host that moves on."""
    p = Parts()
    net, opt, queue, place = p.net, p.opt, torch.zeros(21, 4), [0]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        out = net(rows)
        loss = F.cross_entropy(out, labels) + 0.01 * (out @ queue.t()).square().mean()
        loss.backward()
        opt.step()
        queue[place[0] : place[0] + 7] = out.detach()
        place[0] = (place[0] + 7) % 21
        return loss

    return p.twin(step, attributes=lambda: {"queue": queue, "place": place})


def _warm_average() -> Twin:
    """The pace of an average depends on how many steps there were."""
    p = Parts()
    net, opt, count = p.net, p.opt, {"n": 0}
    average = [parameter.detach().clone() for parameter in net.parameters()]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        pace = min(0.9, (1 + count["n"]) / (10 + count["n"]))
        with torch.no_grad():
            for kept, parameter in zip(average, net.parameters(), strict=True):
                kept.lerp_(parameter, 1 - pace)
        count["n"] += 1
        return loss

    return p.twin(step, attributes=lambda: {**count, "average": average})


def _best() -> Twin:
    """The lowest loss so far, and how long ago it was."""
    p = Parts()
    net, opt, record = p.net, p.opt, {"best": float("inf"), "since": 0}

    def step(rows: Tensor, labels: Tensor) -> float:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        value = loss.item()
        if value < record["best"]:
            record["best"], record["since"] = value, 0
        else:
            record["since"] += 1
        return record["best"]

    return p.twin(step, attributes=lambda: record)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _logged() -> Twin:
    """Every call logs its loss, through a logger of the standard library."""
    p = Parts()
    net, opt, handler = p.net, p.opt, _Lines()
    logger = logging.Logger("training", logging.INFO)
    logger.addHandler(handler)

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        logger.info("loss %.6f", loss.item())
        return loss

    return p.twin(step, attributes=lambda: {"lines": handler.lines})


KINDS_OF_STATE = (
    Case("lazy modules", _lazy, eager_calls=1),
    Case("an LSTM that goes on", _recurrent),
    Case("a GRU with dropout", _gru),
    Case("an embedding that writes its weights", _renormed),
    Case("parameters in one vector", _flat_parameters, may_refuse=True),
    Case("gradients in one vector", _flat_gradients, may_refuse=True),
    *(Case(f"complex {it.__name__}", functools.partial(_complex, it)) for it in (optim.Adam, optim.SGD, optim.RMSprop)),
    Case("bfloat16", functools.partial(_dtype, torch.bfloat16)),
    Case("float64", functools.partial(_dtype, torch.float64)),
    Case("unusual sizes, unused parameters", _sizes),
    Case("channels last", _channels_last),
    Case("parametrizations", _parametrized),
    Case("a generator of the user's", _own_generator),
    Case("a queue with a place on the host", _queue, captures=None, eager_calls=None),
    Case("a pace that depends on a count", _warm_average, captures=None, eager_calls=None),
    Case("the best so far", _best, captures=None, eager_calls=None),
    Case("logging", _logged, captures=None, eager_calls=None),
)
