"""Compiled functions that a compiled function calls: recorded through, whoever compiled them, and usable afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

SCALE = 2.0


def _aot(f: Callable[..., Any]) -> Callable[..., Any]:
    return dovetail.aot_function(f, fw_compiler=lambda gm, inputs: gm)


INNER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "compile": dovetail.compile,
    "aot": _aot,
    "torch": lambda f: torch.compile(f, backend="dovetail"),
    "torch, fullgraph": lambda f: torch.compile(f, backend="eager", fullgraph=True),
}
OUTER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "compile": dovetail.compile,
    "aot": _aot,
    "torch": lambda f: torch.compile(f, backend="dovetail"),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("called_first", [False, True])
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", INNER)
def test_recorded_through(inner: str, outer: str, called_first: bool) -> None:
    def plain(x: Tensor) -> Tensor:
        return x.sin() * 2

    within = INNER[inner](plain)
    if called_first:
        within(torch.ones(3))
    compiled = OUTER[outer](lambda x: within(x) + 1)
    for _ in range(2):
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        made = compiled(x)
        made.sum().backward()
        assert torch.equal(made, plain(x) + 1)
        assert torch.equal(x.grad, 2 * x.detach().cos())  # type: ignore[arg-type]
    assert torch.equal(within(x), plain(x))


@pytest.mark.parametrize("inner", INNER)
def test_what_the_inner_function_reads_is_guarded(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(x: Tensor) -> Tensor:
        return x * SCALE

    within = INNER[inner](plain)
    compiled = dovetail.compile(lambda x: within(x) + 1)
    x = torch.ones(3)
    assert torch.equal(compiled(x), plain(x) + 1)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert torch.equal(compiled(x), plain(x) + 1)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x).relu()
        return result


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
def test_a_compiled_part_of_a_model(backend: str) -> None:
    model = nn.Sequential(Part(), nn.ReLU())
    x = torch.linspace(-1, 1, 6).view(2, 3)
    expected = model(x).detach()
    model[0].compile(backend=backend, fullgraph=True)
    assert torch.equal(dovetail.compile(model)(x), expected)
    assert torch.equal(dovetail.freeze(model, (x,))(x), expected)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("inner", ["compile", "aot", "torch"])
def test_in_a_step(inner: str) -> None:
    outcomes = []
    for wrap, compile_step in ((lambda f: f, lambda f: f), (INNER[inner], dovetail.compile_step)):
        torch.manual_seed(0)
        linear = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        loss_of = wrap(lambda made: made.square().mean())

        def step(
            x: Tensor,
            linear: nn.Module = linear,
            optimizer: torch.optim.Optimizer = optimizer,
            loss_of: Callable[..., Tensor] = loss_of,
        ) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(linear(x))
            loss.backward()
            optimizer.step()
            return loss

        called = compile_step(step)
        outcomes.append([called(torch.ones(4, 3) * number).detach().clone() for number in range(3)])
    assert all(map(torch.equal, *outcomes))


@pytest.mark.parametrize("compiler", [lambda f: torch.compile(f, backend="eager", fullgraph=True), dovetail.compile])
def test_a_step_calls_a_compiled_function(compiler: Callable[..., Any]) -> None:
    def train(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        inner = compiler(lambda gradient: gradient * 2)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = net(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.grad.copy_(inner(parameter.grad))
            optimizer.step()
            return loss.detach()

        call = dovetail.compile_step(step) if compiled else step
        losses = [call(torch.ones(3, 4) * number) for number in range(4)]
        return [*losses, net.weight.detach(), inner(torch.ones(2))]  # which is not broken afterwards

    assert all(map(torch.equal, train(True), train(False)))
