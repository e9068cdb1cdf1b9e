"""Compiled functions and steps inside of others, and steps of several threads: what is behind them counts, too."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

Make = Callable[[Callable[..., Any]], Any]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = (self.linear(x) * self.factor).square().mean()
        return found


def _as_it_is(function: Any) -> Any:
    return function


def _results(run: Callable[[_Net, int], list[Tensor]]) -> list[Tensor]:
    torch.manual_seed(0)
    net = _Net()
    found = []
    for call in range(6):
        net.factor = 1.0 + (call > 2)
        found += [x.detach().clone() for x in (*run(net, call), *net.parameters(), net.calls)]
    return found


def _same(eager: list[Tensor], compiled: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


@pytest.mark.parametrize("outer", [dovetail.compile, dovetail.compile_step])
def test_what_a_compiled_module_reads_is_guarded_around_it(outer: Make) -> None:
    def made(inner: Make, outer: Make) -> Callable[[_Net, int], list[Tensor]]:
        held: dict[str, Any] = {}

        def run(net: _Net, call: int) -> list[Tensor]:
            if not held:
                module = inner(net)
                held["call"] = outer(lambda x: module(x) + module.factor)
            with torch.no_grad():
                return [held["call"](torch.full((2, 4), float(call)))]

        return run

    assert _same(_results(made(_as_it_is, _as_it_is)), _results(made(dovetail.compile, outer)))


def _a_step(net: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_a_step_of_steps_is_one_program() -> None:
    def made(compiled: Make) -> Callable[[_Net, int], list[Tensor]]:
        held: dict[str, Any] = {}

        def run(net: _Net, call: int) -> list[Tensor]:
            if not held:
                inner = held["inner"] = compiled(_a_step(net))
                held["outer"] = compiled(lambda x: inner(x) + inner(x * 2))
            x = torch.full((2, 4), float(call))
            return [held["outer"](x), held["inner"](x)] if call % 2 else [held["outer"](x)]

        return run

    assert _same(_results(made(_as_it_is)), _results(made(dovetail.compile_step)))


def test_static_methods_and_class_methods_in_both_orders() -> None:
    def decorated(compiled: Any) -> list[Tensor]:
        torch.manual_seed(0)

        class Training:
            net = _Net()
            step = _a_step(net)

            @staticmethod
            @compiled
            def inside(x: Tensor) -> Tensor:
                return Training.step(x)  # type: ignore[no-any-return, call-arg, arg-type]

            @compiled
            @staticmethod
            def outside(x: Tensor) -> Tensor:
                return Training.step(x * 2)  # type: ignore[no-any-return, call-arg, arg-type]

            @classmethod
            @compiled
            def of_class_inside(cls, x: Tensor) -> Tensor:
                return cls.step(x * 3)  # type: ignore[no-any-return, call-arg, arg-type]

            @compiled
            @classmethod
            def of_class_outside(cls, x: Tensor) -> Tensor:
                return cls.step(x * 4)  # type: ignore[no-any-return, call-arg, arg-type]

        x = torch.ones(2, 4)
        ways: Any = (Training, Training())
        names = ("inside", "outside", "of_class_inside", "of_class_outside")
        return [getattr(way, name)(x) for _ in range(3) for way in ways for name in names]

    assert _same(decorated(_as_it_is), decorated(dovetail.compile_step))


def test_a_class_method_cannot_be_a_compiled_function() -> None:
    with pytest.raises(dovetail.DovetailError, match=r"write @classmethod above @dovetail\.compile"):
        dovetail.compile(classmethod(lambda cls, x: x))  # type: ignore[arg-type]


def test_steps_of_several_threads_begin_at_once() -> None:
    threads, calls = 4, 8
    inputs = torch.arange(calls * 8.0).reshape(calls, 2, 4) / 50
    torch.manual_seed(0)
    nets = [_Net() for _ in range(2 * threads)]
    for eager, compiled in zip(nets[:threads], nets[threads:], strict=True):
        compiled.load_state_dict(eager.state_dict())
    meeting = threading.Barrier(threads)
    losses: dict[int, Any] = {}

    def work(number: int) -> None:
        inner = _a_step(nets[threads + number])

        def step(x: Tensor) -> tuple[Tensor, Any]:
            loss = inner(x)
            return loss, (loss > 0).tolist()

        compiled = dovetail.compile_step(step)
        for count, x in enumerate(inputs):
            if count < 2:
                meeting.wait()
            losses.setdefault(number, []).append(compiled(x)[0])

    before = builtins.print, torch.Tensor.tolist
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert (builtins.print, torch.Tensor.tolist) == before
    for number in range(threads):
        eager = _a_step(nets[number])
        assert _same([eager(x) for x in inputs], losses[number])
        assert torch.equal(nets[number].linear.weight, nets[threads + number].linear.weight)


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_a_compiled_module_inside_says_nothing_of_hooks(door: Make, recwarn: pytest.WarningsRecorder) -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    run = door(lambda x: compiled(x).detach() * 2)
    for _ in range(3):
        run(torch.ones(2, 4))
    assert [str(x.message) for x in recwarn if "hooks" in str(x.message)] == []
