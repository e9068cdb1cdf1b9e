"""Whole steps, functions and frozen modules with machine code: as eager, at no higher peak, and seen in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.memory import measure_peak
from tests.execute.native.programs import calls_counted

pytest.importorskip("llvmlite")

NATIVE = ("native", "aten")
_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "dampening": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam decay": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    "adam no first beta": lambda p: torch.optim.Adam(p, 0.01, betas=(0.0, 0.99)),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw single": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw maximize": lambda p: torch.optim.AdamW(p, 0.01, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "rmsprop all": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True, weight_decay=0.1),
}


@dataclass
class _Trained:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Tensor, Tensor], Tensor]

    def state(self) -> Iterator[Any]:
        """Everything that a step leaves behind."""
        for parameter in self.model.parameters():
            yield from (parameter.detach().clone(), parameter.grad, parameter._version)
            for name, value in sorted(self.optimizer.state[parameter].items()):
                yield (name, value.clone() if isinstance(value, Tensor) else value)


def _trained(name: str, dtype: torch.dtype = torch.float32) -> _Trained:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(17, 33), nn.ReLU(), nn.Linear(33, 9), nn.Tanh(), nn.Linear(9, 3)).to(dtype)
    optimizer = _OPTIMIZERS[name](model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return _Trained(model, optimizer, step)


def _batches(count: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(20, 17, generator=generator, dtype=dtype)
        yield x, torch.randn(20, 3, generator=generator, dtype=dtype)


@pytest.mark.parametrize("name", _OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_optimizers(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    eager, native = _trained(name, dtype), _trained(name, dtype)
    step = dovetail.compile_step(native.step, executors=NATIVE)
    for x, y in _batches(5, dtype):
        assert torch.equal(eager.step(x, y), step(x, y))
        for a, b in zip(eager.state(), native.state(), strict=True):
            assert _equal(a, b)
    assert len(answers) >= 3, "calls that were captured before"
    assert set(answers) == {0}


class _Cell(nn.Module):
    """A recurrent layer over a few steps: products whose results are cut into gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.back, self.out = nn.Linear(6, 32), nn.Linear(8, 32), nn.Linear(8, 2)

    def forward(self, xs: Tensor) -> Tensor:
        h = c = torch.zeros(xs.shape[1], 8)
        for x in xs:
            i, f, g, o = (self.gates(x) + self.back(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        made: Tensor = self.out(h)
        return made


def test_recurrent_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    found = []
    for is_native in (False, True):
        torch.manual_seed(0)
        model = _Cell()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def step(
            xs: Tensor, y: Tensor, model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xs), y)
            loss.backward()
            optimizer.step()
            return loss

        run: Any = dovetail.compile_step(step, executors=NATIVE) if is_native else step
        generator = torch.Generator().manual_seed(1)
        losses = [
            run(torch.randn(3, 5, 6, generator=generator), torch.randn(5, 2, generator=generator)) for _ in range(4)
        ]
        found.append([*losses, *(parameter.detach() for parameter in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert answers
    assert set(answers) == {0}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return a[0] == b[0] and _equal(a[1], b[1])
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def test_the_rate_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are handed in: another rate needs no other machine code, and a whole one is as good as a fraction."""
    answers = calls_counted(monkeypatch)
    eager, native = _trained("momentum"), _trained("momentum")
    step = dovetail.compile_step(native.step, executors=NATIVE)
    rates = [0.1, 0.05, 0.5, 1e-8, 0.0]
    for (x, y), rate in zip(_batches(5), rates, strict=True):
        for trained in (eager, native):
            trained.optimizer.param_groups[0]["lr"] = rate
        assert torch.equal(eager.step(x, y), step(x, y))
        assert all(_equal(a, b) for a, b in zip(eager.state(), native.state(), strict=True))
    assert set(answers) == {0}


@pytest.mark.parametrize("name", ["momentum", "adamw", "rmsprop all"])
def test_the_peak_is_no_higher(name: str) -> None:
    peaks = {}
    for executors in (("aten",), NATIVE):
        trained = _trained(name)
        step = dovetail.compile_step(trained.step, executors=executors)
        for x, y in _batches(3):
            step(x, y)
        trained.optimizer.zero_grad()
        peaks[executors] = measure_peak(lambda step=step, x=x, y=y: step(x, y)).peak_bytes
    assert peaks[NATIVE] <= peaks["aten",]


def test_explain_says_what_is_machine_code() -> None:
    trained = _trained("adamw")
    step = dovetail.compile_step(trained.step, executors=NATIVE)
    for x, y in _batches(2):
        step(x, y)
    (program,) = dovetail.explain(step).programs
    by = {name: [node for node in program.nodes if node.executor == name] for name in ("native", "aten")}
    assert len(by["native"]) > 40
    operators = {node.operator for node in by["native"]}
    assert {"aten.addcdiv_.default", "aten.sqrt.default", "aten.lerp_.Scalar"} <= {f"{o}" for o in operators}
    assert "aten.addmm.default" in operators
    assert "aten._local_scalar_dense.default" in {node.operator for node in by["aten"]}
    assert all("test_steps.py" in str(node.origin) for node in by["native"])


@pytest.mark.parametrize("options", [{}, {"arena": True}, {"verify": 1}, {"memory_limit": "1MiB"}])
def test_beside_other_options(options: dict[str, Any]) -> None:
    eager, native = _trained("adamw"), _trained("adamw")
    step = dovetail.compile_step(native.step, executors=NATIVE, **options)
    for x, y in _batches(4):
        assert torch.equal(eager.step(x, y), step(x, y))
    assert all(_equal(a, b) for a, b in zip(eager.state(), native.state(), strict=True))


def _gates(x: Tensor, h: Tensor) -> Tensor:
    update = torch.tanh(x * 0.5) * 0.5 + 0.5
    return update * h + (1 - update) * torch.tanh(x + h)


@pytest.mark.parametrize("dynamic", [False, True])
def test_functions_forward_and_backward(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    compiled = dovetail.compile(_gates, executors=NATIVE, dynamic=dynamic)
    for rows in (4, 7, 33, 1, 4):
        made = []
        for function in (_gates, compiled):
            x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)).requires_grad_()
            h = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows + 1)).requires_grad_()
            result = function(x, h)
            (result * result).sum().backward()
            made.append((result.detach(), x.grad, h.grad))
        assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    assert len(answers) >= 10
    assert set(answers) == {0}


def test_inputs_that_are_negated_views() -> None:
    """A tensor whose bytes are read with the other sign: kernels would take the bytes for the numbers."""
    compiled = dovetail.compile(_gates, executors=NATIVE)
    numbers = torch.randn(6, dtype=torch.complex64)
    h = torch.randn(6)
    assert torch.equal(compiled(torch._neg_view(h.clone()), h), _gates(torch._neg_view(h.clone()), h))
    x = numbers.conj().imag
    assert x.is_neg()
    assert torch.equal(compiled(x, h), _gates(x, h))
    assert torch.equal(compiled(x.resolve_neg(), h), _gates(x.resolve_neg(), h))


def test_frozen_modules() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return torch.exp(torch.tanh(y) * 2.0) / 3.0

    scaled, x = Scaled().eval(), torch.randn(3, 8)
    frozen = dovetail.freeze(scaled, (x,), executors=NATIVE)
    plain = dovetail.freeze(scaled, (x,))
    assert torch.equal(frozen(x), plain(x))


def test_in_inference_mode() -> None:
    compiled = dovetail.compile(_gates, executors=NATIVE)
    with torch.inference_mode():
        x, h = torch.randn(5), torch.randn(5)
        assert torch.equal(compiled(x, h), _gates(x, h))
