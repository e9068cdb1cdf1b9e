"""What the code reads is looked at before each call: after a change, the call is eager's again."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

import dovetail

GLOBAL = 2.0
OWN_MODULE = ModuleType("own_module")
OWN_MODULE.__file__ = "/home/user/own_module.py"

Case = tuple[Callable[..., Any], list[Callable[[], object]]]


class _Config:
    limit = 1.0

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, x: Tensor) -> Tensor:
        return x * self.scale * GLOBAL


class _Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class _Net(nn.Module):
    offset = 1.0

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.act: Any = torch.relu
        self.vars = attributes
        for name, value in attributes.items():
            setattr(self, name, value)

    def block(self, x: Tensor) -> Tensor:
        return x * GLOBAL

    @property
    def shift(self) -> float:
        return GLOBAL + 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.block(x)) + self.offset + self.shift
        return y


def _set(owner: Any, **values: Any) -> Callable[[], None]:
    def change() -> None:
        for name, value in values.items():
            setattr(owner, name, value)

    return change


def _here(**values: Any) -> Callable[[], None]:
    return _set(sys.modules[__name__], **values)


def _function_of_a_module() -> Case:
    net = _Net()
    return net, [_set(net, act=torch.neg), _set(net, act=torch.relu)]


def _method_that_reads_a_global() -> Case:
    return _Net(), [_here(GLOBAL=3.0)]


def _attribute_of_a_class() -> Case:
    return _Net(), [_set(_Net, offset=4.0), _set(_Net, offset=1.0)]


def _method_of_a_class() -> Case:
    before = _Net.block
    return _Net(), [_set(_Net, block=lambda self, x: x - 7), _set(_Net, block=before)]


def _forward_of_one_module() -> Case:
    net = _Net()
    return net, [_set(net, forward=lambda x: x + 9)]


def _child() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def replace() -> None:
        net[0] = nn.Linear(3, 3)

    return net, [replace, lambda: net.append(nn.Tanh()), lambda: net[2].register_forward_hook(lambda *a: a[2] * 2)]


def _parameter_where_there_was_none() -> Case:
    net = nn.Linear(3, 3, bias=False)
    return net, [_set(net, bias=nn.Parameter(torch.ones(3))), _set(net, bias=None)]


def _parametrization() -> Case:
    net = nn.Linear(3, 3)
    return net, [lambda: nn.utils.parametrizations.weight_norm(net)]


def _parameter_taken_away() -> Case:
    class Maybe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight if hasattr(self, "weight") else x

    net = Maybe()
    return net, [lambda: delattr(net, "weight")]


def _tensor_that_is_no_buffer() -> Case:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    net = Scaled()
    return net, [_set(net, factor=torch.full((3,), 5.0))]


def _object_of_a_module() -> Case:
    net = _Net()
    net.act = _Config(2.0).apply
    other = _Config(3.0)
    return net, [_set(net, act=other.apply), _set(other, scale=4.0)]


def _object_with_slots() -> Case:
    config = _Slotted(2.0)
    return lambda x: x * config.scale, [_set(config, scale=3.0)]


def _method_of_an_object() -> Case:
    config = _Config(2.0)
    return lambda x: config.apply(x) + config.limit, [_here(GLOBAL=3.0), _set(_Config, limit=2.0)]


def _module_of_a_bound_method() -> Case:
    trainer = _Config(1.0)
    trainer.model = nn.Dropout(0.5)  # type: ignore[attr-defined]

    def step(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.model(x)
        return y

    return step.__get__(trainer), [trainer.model.eval]  # type: ignore[attr-defined]


def _increment(x: Tensor) -> Tensor:
    return x + 1


def _helper_and_what_it_reads() -> Case:
    def f(x: Tensor) -> Tensor:
        return _increment(x)

    return f, [_here(_increment=lambda x: x * GLOBAL), _here(GLOBAL=3.0)]


def _code_of_a_function() -> Case:
    def f(x: Tensor) -> Tensor:
        return x * 2

    return f, [_set(f, __code__=(lambda x: x * 3).__code__)]


def _set_of_numbers() -> Case:
    numbers = {2.0}
    return lambda x: x * max(numbers), [lambda: numbers.add(7.0)]


def _argument_of_a_partial() -> Case:
    options = {"scale": 2.0}

    def f(options: dict[str, float], x: Tensor) -> Tensor:
        return x * options["scale"]

    return functools.partial(f, options), [lambda: options.update(scale=3.0)]


def _variable_of_an_own_module(scale: float = 2.0) -> Case:
    sys.modules["own_module"] = OWN_MODULE
    _set(OWN_MODULE, scale=scale)()
    return lambda x: x * OWN_MODULE.scale, [_set(OWN_MODULE, scale=3.0)]


@pytest.mark.parametrize(
    "make",
    [
        _function_of_a_module,
        _method_that_reads_a_global,
        _attribute_of_a_class,
        _method_of_a_class,
        _forward_of_one_module,
        _child,
        _parameter_where_there_was_none,
        _parametrization,
        _parameter_taken_away,
        _tensor_that_is_no_buffer,
        _object_of_a_module,
        _object_with_slots,
        _method_of_an_object,
        _module_of_a_bound_method,
        _helper_and_what_it_reads,
        _code_of_a_function,
        _set_of_numbers,
        _argument_of_a_partial,
        _variable_of_an_own_module,
    ],
)
def test_a_change_is_seen(make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    for owner, name in ((here, "GLOBAL"), (here, "_increment"), (_Config, "limit"), (_Net, "offset"), (_Net, "block")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    target, changes = make()
    compiled = dovetail.compile(target)
    x = torch.tensor([-1.0, 2.0, 3.0])
    for change in [lambda: None, *changes, lambda: None]:
        change()
        torch.manual_seed(0)
        expected = target(x)
        torch.manual_seed(0)
        assert torch.equal(compiled(x), expected)


def test_another_object_at_the_address_of_an_old_one_is_not_taken_for_it() -> None:
    net = _Net()
    compiled = dovetail.compile(net)
    x = torch.ones(3)
    for step in range(6):
        net.act = functools.partial(torch.mul, other=step)
        gc.collect()
        assert torch.equal(compiled(x), net(x))


def test_what_was_reached_before_is_found_again() -> None:
    net = _Net()
    compiled = dovetail.compile(net)
    for _ in range(5):
        for net.act in (torch.relu, torch.neg):
            compiled(torch.ones(3))
    assert len(compiled.graphs) == 2


class _SineForExponential(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.sin(*args) if func is torch.exp else func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _hook_on_all_modules() -> Iterator[None]:
    handle = register_module_forward_hook(lambda module, inputs, output: (output[0] * 3, output[1]))
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "around",
    [_SineForExponential, _hook_on_all_modules, lambda: torch.device("meta"), lambda: sdpa_kernel(SDPBackend.MATH)],
)
def test_modes_around_a_call_are_seen(around: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return nn.functional.scaled_dot_product_attention(x, x, x.exp()), torch.zeros(2)

    torch.manual_seed(0)
    net, x = Attention(), torch.randn(1, 2, 16, 4)
    compiled = dovetail.compile(net)
    for context in (contextlib.nullcontext(), around(), contextlib.nullcontext()):
        with context:
            (value, fresh), (expected, made) = compiled(x), net(x)
        assert torch.equal(value, expected)
        assert fresh.device == made.device


def _module_argument() -> tuple[Any, list[Callable[[], object]]]:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def other_weight() -> None:
        net[0].weight = nn.Parameter(torch.ones(3, 3))

    return net, [net.eval, other_weight, lambda: net.requires_grad_(False), lambda: net.append(nn.Tanh())]


def _function_argument() -> tuple[Any, list[Callable[[], object]]]:
    scales = [2.0]
    return lambda x: x * scales[0], [lambda: scales.append(3.0), lambda: scales.pop(0)]


def _object_argument() -> tuple[Any, list[Callable[[], object]]]:
    config = _Config(2.0)
    return config.apply, [_set(config, scale=3.0), _here(GLOBAL=3.0)]


@pytest.mark.parametrize("make", [_module_argument, _function_argument, _object_argument])
def test_a_change_of_an_argument_is_seen(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "GLOBAL", GLOBAL)
    argument, changes = make()
    compiled, x = dovetail.compile(lambda call, x: call(x)), torch.tensor([-1.0, 2.0, 3.0])
    for change in [lambda: None, *changes, lambda: None]:
        change()
        torch.manual_seed(0)
        expected = argument(x)
        torch.manual_seed(0)
        actual = compiled(argument, x)
        assert torch.equal(actual, expected)
        assert actual.requires_grad == expected.requires_grad


def test_the_weights_of_a_module_that_is_passed_get_gradients() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    compiled = dovetail.compile(lambda net, x: net(x).square().sum())
    for module in (net, other, net):
        module.zero_grad()
        compiled(module, torch.ones(3)).backward()
        expected = torch.autograd.grad(module(torch.ones(3)).square().sum(), module.weight)[0]
        assert torch.equal(module.weight.grad, expected)
    assert len(compiled.graphs) == 2
