"""Hooks of parameters, optimizers and modules, in compiled steps: as in eager mode, also when they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import dovetail
from dovetail.errors import StateChangedOtherwise, UnsupportedStep
from tests.frontends.step.agreement import programs_of

Step = Callable[..., Any]
Change = Callable[[], None]
# makes a net's step, and what is done before certain calls
Setting = Callable[[torch.nn.Module], tuple[Step, dict[int, Change]]]


def _net() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def _numbers(net: torch.nn.Module) -> list[torch.Tensor]:
    return [x for p in net.parameters() for x in (p.detach(), p.grad) if x is not None]


def _run(setting: Setting, calls: int, compiled: bool) -> tuple[list[Any], Any]:
    net = _net()
    step, changes = setting(net)
    called = dovetail.compile_step(step, keep_grads=True) if compiled else step
    generator = torch.Generator().manual_seed(7)
    found = []
    for number in range(calls):
        if number in changes:
            changes[number]()
        found.append(called(torch.randn(3, 4, generator=generator)))
        found += [x.clone() for x in _numbers(net)]
    return found, called


def _agree(setting: Setting, calls: int = 6) -> Any:
    """Run both ways, compare bit by bit, and answer the compiled step."""
    expected, _ = _run(setting, calls, compiled=False)
    found, step = _run(setting, calls, compiled=True)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    return step


def _plain(net: torch.nn.Module) -> tuple[Step, torch.optim.Optimizer]:
    opt = torch.optim.AdamW(net.parameters(), lr=0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step, opt


def _first(net: torch.nn.Module) -> torch.nn.Parameter:
    return next(net.parameters())


# --- of parameters ------------------------------------------------------------------------------------------------


def test_a_hook_from_before_runs() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        _first(net).register_hook(lambda gradient: gradient * 0.1)
        return _plain(net)[0], {}

    assert _agree(setting).stats.captures == 1


def test_a_hook_that_comes_and_goes() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        handles: list[Any] = []

        def add() -> None:
            handles.append(_first(net).register_hook(lambda gradient: gradient * 0.1))

        return _plain(net)[0], {3: add, 5: lambda: handles.pop().remove(), 7: add}

    stats = _agree(setting, 9).stats
    assert (stats.eager_calls, stats.captures) == (0, 2)  # without and with; it is the same again


def test_a_second_hook() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        handle = _first(net).register_hook(lambda gradient: gradient * 0.1)
        return _plain(net)[0], {
            3: lambda: _first(net).register_hook(lambda gradient: gradient + 1) and None,
            5: handle.remove,
        }

    assert _agree(setting, 7).stats.captures == 3


def test_a_hook_after_accumulation_that_comes_and_goes() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        handles: list[Any] = []

        def halve(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

        def add() -> None:
            handles.append(_first(net).register_post_accumulate_grad_hook(halve))

        return _plain(net)[0], {3: add, 5: lambda: handles.pop().remove()}

    assert _agree(setting, 7).stats.captures == 2


def test_what_a_hook_reads_changes() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        factor = {"by": 0.1}
        _first(net).register_hook(lambda gradient: gradient * factor["by"])
        return _plain(net)[0], {3: lambda: factor.update(by=0.2), 4: lambda: factor.update(by=0.3)}

    _agree(setting, 7)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_for_each_parameter_in_backward(kind: Any, foreach: bool) -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        of = {p: kind([p], lr=0.05, foreach=foreach) for p in net.parameters()}

        def update(parameter: torch.nn.Parameter) -> None:
            of[parameter].step()
            of[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(update)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().mean()
            loss.backward()
            return loss.detach()

        def slower() -> None:
            for optimizer in of.values():
                optimizer.param_groups[0]["lr"] = 0.01

        return step, {3: slower}

    stats = _agree(setting).stats
    assert (stats.eager_calls, programs_of(stats)) == (0, 1)


def test_a_hook_that_the_step_registers_and_removes() -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        inner, _ = _plain(net)

        def step(x: torch.Tensor) -> torch.Tensor:
            handle = _first(net).register_hook(lambda gradient: gradient * 0.1)
            loss = inner(x)
            handle.remove()
            return loss

        return step, {}

    assert _agree(setting).stats.captures == 1


def test_a_hook_that_the_step_leaves_is_refused() -> None:
    net = _net()
    inner, _ = _plain(net)

    @dovetail.compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        _first(net).register_hook(lambda gradient: gradient * 0.5)  # this line
        return inner(x)

    with pytest.raises(StateChangedOtherwise, match=r"registers a hook of net.0.weight and leaves it") as caught:
        list(map(step, [torch.ones(3, 4)] * 6))
    assert _line_of("# this line") in str(caught.value)


def test_a_capture_leaves_no_hook() -> None:
    net = _net()
    inner, _ = _plain(net)
    calls: list[object] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = inner(x)
        if calls.append(object()) or len(calls) > 1:
            _first(net).register_hook(lambda gradient: gradient * 0.5)
        return loss

    compiled = dovetail.compile_step(step)
    compiled(torch.ones(3, 4))
    with pytest.raises(StateChangedOtherwise):
        compiled(torch.ones(3, 4))
    net(torch.ones(3, 4)).sum().backward()
    gradient = _first(net).grad
    again = _net()
    again.load_state_dict(net.state_dict())
    again(torch.ones(3, 4)).sum().backward()
    assert gradient is not None
    net.zero_grad()
    _first(net).register_hook(lambda gradient: gradient * 2)
    net(torch.ones(3, 4)).sum().backward()
    assert _first(net).grad is not None
    assert torch.equal(_first(net).grad, 2 * _first(again).grad)


def test_an_argument_with_hooks_is_refused() -> None:
    net = _net()
    inner, _ = _plain(net)
    compiled = dovetail.compile_step(inner)
    for _ in range(3):
        compiled(torch.ones(3, 4, requires_grad=True))
    x = torch.ones(3, 4, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UnsupportedStep, match="which has gradient hooks"):
        compiled(x)
    compiled(torch.ones(3, 4, requires_grad=True))


# --- of all optimizers and all modules ------------------------------------------------------------------------------


@pytest.fixture
def handles() -> Iterator[list[Any]]:
    found: list[Any] = []
    yield found
    for handle in found:
        handle.remove()


def test_a_hook_of_all_optimizers_is_recorded(handles: list[Any]) -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        def clip(optimizer: Any, *_: Any) -> None:
            torch.nn.utils.clip_grad_value_(optimizer.param_groups[0]["params"], 0.01)

        return _plain(net)[0], {
            3: lambda: handles.append(register_optimizer_step_pre_hook(clip)),
            5: lambda: handles.pop().remove(),
        }

    assert _agree(setting, 7).stats.captures == 2


def test_a_hook_of_all_optimizers_that_keeps_a_list_is_called(handles: list[Any]) -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        rates: list[float] = []
        handles.append(register_optimizer_step_post_hook(lambda opt, *_: rates.append(opt.param_groups[0]["lr"])))
        inner, opt = _plain(net)

        def step(x: torch.Tensor) -> torch.Tensor:
            return inner(x)

        def look() -> None:
            assert rates == [0.05, 0.05, 0.05]
            opt.param_groups[0]["lr"] = 0.5

        def look_again() -> None:
            assert rates == [0.05, 0.05, 0.05, 0.5]
            handles.pop().remove()

        return step, {3: look, 4: look_again}

    _agree(setting, 6)


def test_a_hook_of_all_modules(handles: list[Any]) -> None:
    def setting(net: torch.nn.Module) -> tuple[Step, dict[int, Change]]:
        def halve(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            return output * 0.5

        register = torch.nn.modules.module.register_module_forward_hook
        return _plain(net)[0], {3: lambda: handles.append(register(halve)), 5: lambda: handles.pop().remove()}

    assert _agree(setting, 7).stats.captures == 2


def _line_of(mark: str) -> str:
    with open(__file__, encoding="utf-8") as source:
        return f"{__file__}:{next(n for n, line in enumerate(source, 1) if line.rstrip().endswith(mark))}"
