"""Tensors of modules are inputs of a function's program, wherever the function finds the modules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import dovetail

_MODEL = nn.Linear(3, 3)


class _Table:
    """A mapping of its own."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, name: str) -> Any:
        return self._items[name]


class _Wrapper:
    __slots__ = ("model",)

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x)


def _places(model: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    deep = {"a": [{"b": (model,)}]}
    table, slotted = _Table({"x": SimpleNamespace(model=model)}), _Wrapper(model)
    holder = SimpleNamespace(inner=SimpleNamespace(inner=SimpleNamespace(models={"last": model})))
    hidden = nn.Module()
    hidden.__dict__["teacher"] = model
    return {
        "closure": lambda x: model(x) * 2,
        "method": model.forward,
        "containers": lambda x: deep["a"][0]["b"][0](x) * 2,
        "own table": lambda x: table["x"].model(x) * 2,
        "slot": lambda x: slotted.model(x) * 2,
        "callable object": slotted,
        "objects": lambda x: holder.inner.inner.models["last"](x) * 2,
        "attribute that is no child": lambda x: hidden.teacher(x) * 2,
    }


@pytest.mark.parametrize("place", _places(_MODEL))
def test_new_tensors_and_gradients(place: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    function = _places(model)[place]
    compiled, x = dovetail.compile(function), torch.randn(4, 3)
    for _ in range(3):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        expected = function(x)
        wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
        after = model.state_dict()
        statistics = {name: tensor.clone() for name, tensor in after.items()}
        model.load_state_dict(before)
        result = compiled(x)
        found = torch.autograd.grad(result.square().sum(), list(model.parameters()))
        assert torch.equal(result, expected)
        assert all(map(torch.equal, found, wanted))
        assert all(torch.equal(tensor, statistics[name]) for name, tensor in model.state_dict().items())
        model[0].weight = nn.Parameter(torch.randn(3, 3))
    assert compiled.stats.captures == 1


def test_another_module_in_the_place_of_one() -> None:
    held = {"models": [nn.Linear(3, 3)]}
    compiled, x = dovetail.compile(lambda x: held["models"][0](x) * 2), torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(compiled(x), held["models"][0](x) * 2)
        held["models"] = [nn.Linear(3, 3)]


def test_shapes_that_alternate_keep_their_programs() -> None:
    deep = {"a": [_MODEL]}
    compiled = dovetail.compile(lambda x: deep["a"][0](x) * 2)
    for rows in (1, 2, 3, 2, 1, 3):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), _MODEL(x) * 2)
    assert compiled.stats.captures == 3


def test_tensors_put_there_for_the_call() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    others = {name: tensor.detach() * 2 for name, tensor in model.named_parameters()}
    held = list(model.parameters())
    compiled = dovetail.compile(lambda x: functional_call(model, others, (x,)))
    for _ in range(3):
        assert torch.equal(compiled(x), functional_call(model, others, (x,)))
    assert compiled.stats.captures == 1
    others["0.weight"] = torch.randn(3, 3)
    assert torch.equal(compiled(x), functional_call(model, others, (x,)))
    assert all(map(operator.is_, held, model.parameters()))


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_modules_made_in_the_call(door: Any) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)

    def function(x: Tensor) -> Tensor:
        return (model[1:](x) + nn.Sequential(model[0], model[1])(x) + nn.ModuleList(model)[:1][0](x)).detach()

    compiled = door(function)
    for _ in range(4):
        assert torch.equal(compiled(x), function(x))
    assert compiled.stats.captures == 1
    model[1] = nn.Sigmoid()
    assert torch.equal(compiled(x), function(x))


def test_one_view_twice_in_inference_mode() -> None:
    function = torch.inference_mode()(lambda x: (x[0], x[0], (x + 1)[0]))
    for compiled in (dovetail.compile(function), dovetail.compile_step(function)):
        for _ in range(2):
            assert all(map(torch.equal, compiled(torch.ones(2)), function(torch.ones(2))))
