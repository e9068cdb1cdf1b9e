"""Calls of one kind that come again and again are recognised in one go; a call of another kind must not be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.frontends.call_guard import CallGuard

SCALES = {"by": 2.0}


def function(x: torch.Tensor, y: torch.Tensor, *, more: Any = 1) -> torch.Tensor:
    return (x + y) * SCALES["by"] + more


def made() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4), torch.randn(3, 4)


def warmed(**keywords: Any) -> Any:
    """Compiled, and called often enough that calls are expected to come again."""
    compiled = dovetail.compile(function)
    for _ in range(4):
        compiled(*made(), **keywords)
    return compiled


def other_calls() -> dict[str, Callable[[Any], Any]]:
    x, y = made()
    wide = torch.randn(4, 3).T
    written = torch.randn(3, 4)
    setattr(written, "note", 1)  # noqa: B010
    return {
        "sizes": lambda f: f(x[:2].clone(), y[:2].clone()),
        "strides": lambda f: f(wide, y),
        "dtypes": lambda f: f(x.double(), y),
        "twice": lambda f: f(x, x),
        "a number": lambda f: f(x, 3.0),
        "by name": lambda f: f(x, y=y),
        "more": lambda f: f(x, y, more=5),
        "more, a tensor": lambda f: f(x, y, more=y),
        "a container": lambda f: f(*[x, y], more=torch.tensor(2.0)),
        "gradients": lambda f: f(x.clone().requires_grad_(), y),
        "an attribute": lambda f: f(written, y),
        "a parameter": lambda f: f(nn.Parameter(x, requires_grad=False), y),
        "a view of the other": lambda f: f(x, x.view(3, 4)),
    }


@pytest.mark.parametrize("name", other_calls())
@pytest.mark.parametrize("is_grad", [True, False])
def test_another_kind_of_call(name: str, is_grad: bool) -> None:
    with torch.set_grad_enabled(is_grad):
        compiled, call = warmed(), other_calls()[name]
        for _ in range(3):  # and the first kind in between
            expected, found = call(function), call(compiled)
            assert torch.equal(found, expected)
            assert found.requires_grad is expected.requires_grad
            assert found.stride() == expected.stride()
            x, y = made()
            assert torch.equal(compiled(x, y), function(x, y))


@pytest.mark.parametrize("keywords", [{"more": 3}, {"more": 2.5}, {"more": True}])
def test_arguments_by_name(keywords: dict[str, Any]) -> None:
    compiled, (x, y) = warmed(**keywords), made()
    for more in ({}, {"more": 3.0}, {"more": 1}, keywords):
        assert torch.equal(compiled(x, y, **more), function(x, y, **more))
    assert torch.equal(compiled(y=y, x=x), function(x, y))


def test_what_it_reads_changes() -> None:
    compiled, (x, y) = warmed(), made()
    before = SCALES["by"]
    try:
        for by in (3.0, 2.0, 4.0, 5.0, 5.0, 5.0, 6.0):
            SCALES["by"] = by
            assert torch.equal(compiled(x, y), function(x, y))
    finally:
        SCALES["by"] = before


def test_parameters_of_a_module_change() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.0)), torch.randn(2, 4)
    compiled = dovetail.compile(model)
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
        changes: tuple[Callable[[], object], ...] = (
            lambda: model[0].weight.mul_(2),
            lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(3, 4))),
            lambda: setattr(model[0], "bias", None),
            model.double,
            model.float,
            lambda: setattr(model, "1", nn.Tanh()),
            lambda: model[0].register_forward_hook(lambda *args: args[2] + 1),
        )
        for change in changes:
            change()
            for _ in range(3):
                given = x.to(model[0].weight.dtype)
                assert torch.equal(compiled(given), model(given))


def test_modes_change() -> None:
    compiled, (x, y) = warmed(), made()
    contexts = (
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("cpu"),
        nullcontext,
    )
    for context in contexts:
        for _ in range(3):
            with context():
                expected, found = function(x, y), compiled(x, y)
            assert torch.equal(found, expected)
            assert found.is_inference() is expected.is_inference()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(compiled(x, y), function(x, y))
    finally:
        torch.set_default_dtype(torch.float32)


def test_calls_are_counted() -> None:
    compiled = warmed()
    assert compiled.stats.calls == 4
    assert [variant.calls for variant in compiled.stats.variants] == [4]


def test_the_whole_guard_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, asked, inputs = warmed(more=3), list[object](), CallGuard.inputs

    def noted(guard: CallGuard, *given: Any) -> Any:
        asked.append(guard)
        return inputs(guard, *given)

    monkeypatch.setattr(CallGuard, "inputs", noted)
    for _ in range(3):
        compiled(*made(), more=3)
    assert not asked
    compiled(*made(), more=4)
    assert asked


def test_an_object_among_the_arguments() -> None:
    def scaled(x: torch.Tensor, options: Any) -> torch.Tensor:
        return x * options.by

    compiled, x = dovetail.compile(scaled), torch.randn(3)
    for by in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0):
        options = SimpleNamespace(by=by)
        assert torch.equal(compiled(x, options), scaled(x, options))
