"""What changes in a model that was frozen is noticed by words of memory as it is by looking at everything."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.capture.module_state import tensor_slots
from dovetail.errors import StaleWeights
from dovetail.execute.watch import watch_with
from dovetail.frontends.freezing.originals import Originals

pytest.importorskip("llvmlite")


class _Net(nn.Module):
    """Parameters, a tied one, a buffer, a plain attribute that is a tensor, and a place for a module that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.second[0].weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_module("empty", None)
        self.shift = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x)) * self.scale + self.shift
        return y


_WAYS = {"machine code": ("auto", "aten"), "Python": ("aten",)}


def _watched(way: str = "machine code") -> tuple[Any, Originals]:
    model = _Net().eval()
    slots = tensor_slots([("", model)])
    names = [slot.name for slot in slots if slot.name != "shift"]
    originals = Originals.of(model, slots, names, {"shift": model.shift}, watch_with(_WAYS[way]))
    assert not originals.is_as_before()
    assert originals.changed() == []
    assert originals.is_as_before()
    assert originals.is_as_before.__name__ == ("look" if way == "Python" else "is_as_before")
    return model, originals


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "a write": lambda m: m.second[0].bias.add_(1),
    "a write of a tied one": lambda m: m.second[0].weight.mul_(2),
    "another tensor": lambda m: setattr(m.first, "weight", nn.Parameter(torch.ones(4, 4))),
    "none": lambda m: setattr(m.first, "bias", None),
    "other memory": lambda m: setattr(m.first.weight, "data", torch.ones(4, 4)),
    "other strides": lambda m: setattr(m.first.weight, "data", m.first.weight.data.t()),
    "another shape": lambda m: setattr(m.first.weight, "data", m.first.weight.data.view(2, 8)),
    "more memory": lambda m: m.scale.resize_(1000),
    "a buffer": lambda m: setattr(m, "scale", torch.ones(4)),
    "an attribute": lambda m: setattr(m, "shift", torch.ones(4)),
    "an attribute that is gone": lambda m: delattr(m, "shift"),
    "another module": lambda m: setattr(m, "first", copy.deepcopy(m.first)),
    "a module more": lambda m: m.second.append(nn.Identity()),
    "a module in an empty place": lambda m: setattr(m, "empty", nn.Identity()),
    "a module that is gone": lambda m: delattr(m.second, "1"),
    "no module": lambda m: setattr(m, "first", None),
    "a state dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "another dictionary": lambda m: m.first.__dict__.update(_parameters={"weight": nn.Parameter(torch.ones(4, 4))}),
}

_NOTHING: dict[str, Callable[[Any], Any]] = {
    "another attribute": lambda m: setattr(m.second, "steps", 3),
    "no gradients": lambda m: m.requires_grad_(False),
    "a gradient": lambda m: setattr(m.first.weight, "grad", torch.ones(4, 4)),
    "a hook": lambda m: m.first.register_forward_hook(lambda *_: None),
    "a parameter that is not read": lambda m: m.first.register_parameter("more", nn.Parameter(torch.ones(1))),
    "there and back": lambda m: [setattr(m, "first", each) for each in [None, m.first]],
    "the same tensor again": lambda m: setattr(m.first, "bias", m.first.bias),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("change", _CHANGES)
def test_changes(change: str, way: str) -> None:
    model, originals = _watched(way)
    with torch.no_grad():
        _CHANGES[change](model)
    assert not originals.is_as_before()
    assert originals._changed()
    assert originals.changed() == originals._changed()


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("change", _NOTHING)
def test_what_is_no_change(change: str, way: str) -> None:
    model, originals = _watched(way)
    _NOTHING[change](model)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            assert originals.changed() == []
            assert originals.is_as_before(), "words were made of it, or hold still"


def test_attributes_that_change_in_each_call_are_looked_at_alone() -> None:
    model, originals = _watched()
    looked = originals.is_as_before
    for number in range(100):
        model.steps = number
        assert originals.changed() == []
    assert originals.is_as_before is looked
    model.scale.add_(1)
    model.steps = 0
    assert originals.changed() == ["scale"]


def test_a_model_that_is_gone() -> None:
    model, originals = _watched()
    del model
    gc.collect()
    assert originals.changed() == []
    assert originals.is_as_before()


def test_a_frozen_model_whose_part_is_taken_out() -> None:
    """Where nothing else holds it, what it was known by is gone."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    frozen: Any = dovetail.freeze(model, (torch.randn(2, 4),), dynamic_shapes="static")
    with torch.no_grad():
        frozen(torch.randn(2, 4))
        setattr(model, "0", None)
        assert frozen.check_stale() == ("0",)
        with pytest.raises(StaleWeights):
            frozen(torch.randn(2, 4))
