"""What hooks keep between calls (variables, objects, optimizers), wherever they are made: as in eager mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dovetail

Step = Callable[[Tensor], Tensor]
Compile = Callable[[Callable[[Any], Step], nn.Module], Step]
"""Gets what makes a step of a net, and the net."""
_HANDLES: list[Any] = []


class _Counted:
    """Hooks that are methods of an object, or the object itself."""

    def __init__(self) -> None:
        self.count = 0
        self.norms: list[float] = []
        self.mean: Tensor | None = None

    def scale(self, gradient: Tensor) -> Tensor:
        self.count += 1
        return gradient * self.count

    def log(self, gradient: Tensor) -> None:
        self.norms.append(gradient.norm().item())

    def average(self, gradient: Tensor) -> Tensor:
        self.mean = gradient.clone() if self.mean is None else self.mean * 0.9 + gradient
        return self.mean

    def after(self, parameter: Tensor) -> None:
        self.count += 1
        assert parameter.grad is not None
        parameter.grad.mul_(self.count)

    def of_module(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        self.count += 1
        return output * self.count

    def __call__(self, gradient: Tensor) -> Tensor:
        return self.scale(gradient)


class _Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gradient: Tensor) -> Tensor:
        self.count += 1
        return gradient * self.count


class _Training:
    """A net, its step, what the hooks of a test keep, and what is compared after each call."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.looks: list[Callable[[], Any]] = []

    def run(self, compiled: Compile) -> list[Any]:
        optimizer = self.optimizer

        def step_of(net: Callable[[Tensor], Tensor]) -> Step:
            def step(x: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            return step

        called = compiled(step_of, self.net)
        generator = torch.Generator().manual_seed(7)
        found: list[Any] = []
        for _ in range(5):
            found.append(called(torch.randn(6, 4, generator=generator)).tolist())
            found += [parameter.tolist() for parameter in self.net.parameters()]
            found += [_shown(look()) for look in self.looks]
        return found


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist()
    if isinstance(value, dict):
        return [_shown(x) for x in value.values()]
    return [_shown(x) for x in value] if isinstance(value, list) else value


# Each hook is made, and the step called, by one function: what makes the hook still runs when the hook does.


def _state_in_a_dictionary(compiled: Compile) -> list[Any]:
    training, state = _Training(), dict[str, Any]()

    def hook(gradient: Tensor) -> Tensor:
        if "mean" not in state:
            state["mean"] = torch.zeros_like(gradient)
        state["mean"].mul_(0.9).add_(gradient)
        return state["mean"].clone()

    training.net.weight.register_hook(hook)
    training.looks.append(lambda: state)
    return training.run(compiled)


def _count_in_a_list(compiled: Compile) -> list[Any]:
    training, count = _Training(), [0]

    def hook(gradient: Tensor) -> Tensor:
        count[0] += 1
        return gradient * count[0]

    training.net.weight.register_hook(hook)
    training.looks.append(lambda: count)
    return training.run(compiled)


def _norms_in_a_list(compiled: Compile) -> list[Any]:
    training, norms = _Training(), list[float]()
    training.net.weight.register_hook(lambda gradient: norms.append(gradient.norm().item()))
    training.looks.append(lambda: norms)
    return training.run(compiled)


def _count_in_a_variable(compiled: Compile) -> list[Any]:
    training, count = _Training(), 0

    def hook(gradient: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return gradient * count

    training.net.weight.register_hook(hook)
    training.looks.append(lambda: count)
    return training.run(compiled)


def _optimizer_for_each_parameter(compiled: Compile) -> list[Any]:
    training = _Training()
    inner = {p: torch.optim.Adam([p], 0.01) for p in training.net.parameters()}

    def hook(parameter: Tensor) -> None:
        inner[parameter].step()
        inner[parameter].zero_grad()

    for parameter in training.net.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    training.looks.append(lambda: [dict(optimizer.state) for optimizer in inner.values()])
    return training.run(compiled)


def _global_hook_of_optimizers(compiled: Compile) -> list[Any]:
    training, count = _Training(), [0]

    def warm_up(optimizer: Any, *_: Any) -> None:
        count[0] += 1
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(1 / count[0])

    _HANDLES.append(register_optimizer_step_pre_hook(warm_up))
    training.looks.append(lambda: count)
    return training.run(compiled)


def _global_hook_of_modules(compiled: Compile) -> list[Any]:
    training, count = _Training(), 0

    def scale(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal count
        count += 1
        return (arguments[0] * count,)

    _HANDLES.append(register_module_forward_pre_hook(scale))
    training.looks.append(lambda: count)
    return training.run(compiled)


def _made_by_a_function(compiled: Compile) -> list[Any]:
    training = _Training()

    def smooth(parameter: Tensor) -> None:
        mean, count = torch.zeros_like(parameter), 0

        def hook(gradient: Tensor) -> Tensor:
            nonlocal count
            count += 1
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            return mean / (1 - 0.9**count)

        parameter.register_hook(hook)

    for parameter in training.net.parameters():  # one code, and variables of its own for each
        smooth(parameter)
    return training.run(compiled)


def _attribute_of_the_hook(compiled: Compile) -> list[Any]:
    training = _Training()

    def hook(gradient: Tensor) -> Any:
        known: Any = hook
        known.count += 1
        return gradient * known.count

    vars(hook)["count"] = 0
    training.net.weight.register_hook(hook)
    training.looks.append(lambda: vars(hook)["count"])
    return training.run(compiled)


def _method_held_weakly(compiled: Compile) -> list[Any]:
    training, counted = _Training(), _Counted()
    method: Any = weakref.WeakMethod(counted.after)

    def hook(parameter: Tensor) -> None:
        method()(parameter)

    training.net.weight.register_post_accumulate_grad_hook(hook)
    training.looks.append(lambda: counted.count)
    return training.run(compiled)


def _global_method(compiled: Compile) -> list[Any]:
    training, counted = _Training(), _Counted()
    _HANDLES.append(register_module_forward_hook(counted.of_module))
    training.looks.append(lambda: counted.count)
    return training.run(compiled)


def _by_object(name: str) -> Callable[[Compile], list[Any]]:
    def run(compiled: Compile) -> list[Any]:
        training, counted, slotted = _Training(), _Counted(), _Slotted()
        if name == "after":
            training.net.weight.register_post_accumulate_grad_hook(counted.after)
        else:
            training.net.weight.register_hook({"object": counted, "slots": slotted}.get(name) or getattr(counted, name))
        training.looks += [lambda: vars(counted), lambda: slotted.count]
        return training.run(compiled)

    run.__name__ = f"_{name}_of_an_object"
    return run


_MAKERS = [
    *(_state_in_a_dictionary, _count_in_a_list, _norms_in_a_list, _count_in_a_variable),
    *(_optimizer_for_each_parameter, _global_hook_of_optimizers, _global_hook_of_modules, _made_by_a_function),
    *(_attribute_of_the_hook, _method_held_weakly, _global_method),
    *map(_by_object, ("scale", "log", "average", "after", "object", "slots")),
]


@pytest.fixture(autouse=True)
def _no_global_hooks() -> Iterator[None]:
    yield
    _remove_handles()


def _remove_handles() -> None:
    while _HANDLES:
        _HANDLES.pop().remove()


def _eager(step_of: Callable[[Any], Step], net: nn.Module) -> Step:
    return step_of(net)


def _as_step(step_of: Callable[[Any], Step], net: nn.Module) -> Step:
    return dovetail.compile_step(step_of(net), keep_grads=True)


def _with_compiled_net(step_of: Callable[[Any], Step], net: nn.Module) -> Step:
    return step_of(dovetail.compile(net))


@pytest.mark.parametrize("run", _MAKERS, ids=lambda run: run.__name__.strip("_"))
def test_state_of_a_hook(run: Callable[[Compile], list[Any]]) -> None:
    expected = run(_eager)
    _remove_handles()
    assert run(_as_step) == expected


@pytest.mark.parametrize("run", [_global_hook_of_modules, _global_method], ids=["variable", "method"])
@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
def test_state_of_a_global_hook_of_a_compiled_net(run: Callable[[Compile], list[Any]]) -> None:
    expected = run(_eager)
    _remove_handles()
    assert run(_with_compiled_net) == expected
