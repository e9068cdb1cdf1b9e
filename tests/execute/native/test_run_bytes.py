"""What a call takes where native code runs is known before, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.memory import measure_peak

pytestmark = pytest.mark.usefixtures("alone")
F = nn.functional


class Gated(nn.Module):
    """Two branches, a norm and a sum over rows: several clusters, some with memory that nobody else sees."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.norm, self.back = nn.LayerNorm(2 * width), nn.Linear(2 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        gated = self.norm(F.silu(self.gate(x)) * torch.tanh(self.wide(x)))
        return self.back(gated / gated.abs().mean(-1, keepdim=True).clamp_min(1e-3))


class Turned(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.drop(torch.sin(x @ self.weight.t()) + x)
        return self.out(x.t().contiguous().t())


NETS: dict[str, Callable[[int], nn.Module]] = {
    "layers": lambda width: nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8), nn.Linear(8, 4)),
    "gated": Gated,
    "turned": Turned,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, centered=True),
}


def _given(width: int, rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(width)
    return torch.randn(rows, width), torch.arange(rows) % 4


def _step(model: nn.Module, updates: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def step() -> Tensor:
        updates.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        updates.step()
        return loss.detach()

    return step


@pytest.mark.parametrize(("net", "optimizer"), list(zip(NETS, OPTIMIZERS, strict=True)))
def test_of_a_step(net: str, optimizer: str) -> None:
    x, y = _given(96, 64)
    model = NETS[net](96)
    compiled = dovetail.compile_step(_step(model, OPTIMIZERS[optimizer](model.parameters()), x, y))
    for _ in range(2):
        compiled()
    said, measured = compiled.explain(), measure_peak(compiled).peak_bytes
    assert measured == said.run_bytes <= said.peak_bytes
    assert sum(row.bytes for row in said.memory.rows) == said.peak_bytes


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("net", NETS)
def test_of_a_graph(net: str, trains: bool) -> None:
    x, y = _given(96, 64)
    model = NETS[net](96).train(trains)
    compiled = dovetail.compile(lambda x: F.cross_entropy(model(x), y))

    def call() -> Tensor:
        with torch.set_grad_enabled(trains):
            loss = compiled(x)
        if trains:
            loss.backward()
        return loss.detach()

    for _ in range(2):
        call()
        model.zero_grad()
    measured = measure_peak(call).peak_bytes
    model.zero_grad()
    with torch.set_grad_enabled(trains):
        said = dovetail.explain(compiled, x).call
    assert said is not None
    assert measured == said.run_bytes <= said.peak_bytes


def test_operators_one_by_one_take_what_is_planned() -> None:
    pytest.importorskip("llvmlite")
    x, y = _given(256, 64)
    model = nn.Sequential(
        nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 4)
    )
    step = _step(model, torch.optim.AdamW(model.parameters()), x, y)

    found = {}
    for executors in (("native", "aten"), ("aten",)):
        compiled = dovetail.compile_step(step, executors=executors)
        for _ in range(2):
            compiled()
        found[executors] = compiled.explain()
    native, plain = found.values()
    assert plain.run_bytes == plain.peak_bytes == native.peak_bytes > native.run_bytes
    assert f"{native.run_bytes:,} bytes" in str(native)
    assert "native code takes" not in str(plain)
