"""Modules that code finds by name, and what functions and classes say: a change is noticed, in each door."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

_SETTINGS = "dovetail_settings_of_tests"
_box = {"name": _SETTINGS}
_load = importlib.import_module


@pytest.fixture
def settings() -> Iterator[ModuleType]:
    made = sys.modules[_SETTINGS] = ModuleType(_SETTINGS)
    made.__dict__["factor"] = 1.0
    yield made
    del sys.modules[_SETTINGS]


def _by_a_variable() -> Any:
    found = importlib.import_module("dovetail_settings_of_tests")
    return found.factor


def _by_another_name_of_the_function() -> Any:
    return _load("dovetail_settings_of_tests").factor


def _by_an_alias() -> Any:
    from sys import modules as loaded  # noqa: PLC0415

    return loaded[_box["name"]].factor


FINDING: dict[str, Callable[[], Any]] = {
    "import_module": lambda: importlib.import_module("dovetail_settings_of_tests").factor,
    "import_module, computed": lambda: importlib.import_module(_box["name"]).factor,
    "import_module, a variable": _by_a_variable,
    "import_module, another name": _by_another_name_of_the_function,
    "__import__": lambda: __import__("dovetail_settings_of_tests").factor,
    "sys.modules": lambda: sys.modules["dovetail_settings_of_tests"].factor,
    "sys.modules, computed": lambda: sys.modules[_box["name"]].factor,
    "sys.modules, another name": _by_an_alias,
    "by a computed attribute": lambda: getattr(sys.modules[_box["name"]], "fac" + "tor"),
    "__dict__": lambda: importlib.import_module("dovetail_settings_of_tests").__dict__["factor"],
}


def _answers(read: Callable[[], Any], change: Callable[[], object]) -> list[Tensor]:
    """Of a step, a function and eager mode: what each gives before a change, and after it."""

    def f(x: Tensor) -> Tensor:
        return x * read()

    doors = [f, dovetail.compile(f), dovetail.compile_step(f)]
    before = [door(torch.ones(2)) for _ in range(2) for door in doors]
    change()
    return [*before, *(door(torch.ones(2)) for door in doors)]


@pytest.mark.parametrize("way", FINDING)
def test_a_module_that_is_found_by_name(settings: ModuleType, way: str) -> None:
    found = _answers(FINDING[way], lambda: settings.__dict__.update(factor=3.0))
    assert [x[0].item() for x in found] == [1.0] * 6 + [3.0] * 3


def test_a_module_that_is_replaced(settings: ModuleType) -> None:
    other = SimpleNamespace(factor=3.0)
    found = _answers(FINDING["sys.modules, computed"], lambda: sys.modules.update({_SETTINGS: other}))  # type: ignore[dict-item]
    assert [x[0].item() for x in found] == [1.0] * 6 + [3.0] * 3


def test_a_library_that_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _answers(
        lambda: len(importlib.import_module("string").whitespace),
        lambda: monkeypatch.setattr("string.whitespace", "abc"),
    )
    assert [x[0].item() for x in found] == [6.0] * 6 + [3.0] * 3


def _make_function() -> Any:
    def described(x: int = 1) -> None:
        """Before."""

    described.__annotations__["x"] = int
    return described


def _make_class() -> Any:
    return type("Kind", (), {"__doc__": "before"})


_function, _kind = _make_function(), _make_class()

SAYING: dict[str, tuple[Callable[[], bool], Callable[[], object]]] = {
    "a name": (lambda: _function.__name__ == "after", lambda: setattr(_function, "__name__", "after")),
    "a long name": (lambda: _function.__qualname__ == "after", lambda: setattr(_function, "__qualname__", "after")),
    "a text": (lambda: _function.__doc__ == "after", lambda: setattr(_function, "__doc__", "after")),
    "a module": (lambda: _function.__module__ == "after", lambda: setattr(_function, "__module__", "after")),
    "an annotation": (
        lambda: _function.__annotations__["x"] is float,
        lambda: _function.__annotations__.update(x=float),
    ),
    "annotations": (
        lambda: _function.__annotations__["x"] is float,
        lambda: setattr(_function, "__annotations__", {"x": float}),
    ),
    "typing": (
        lambda: typing.get_type_hints(_function)["x"] is float,
        lambda: _function.__annotations__.update(x=float),
    ),
    "inspect": (
        lambda: inspect.signature(_function).parameters["x"].annotation is float,
        lambda: _function.__annotations__.update(x=float),
    ),
    "the name of a class": (lambda: _kind.__name__ == "after", lambda: setattr(_kind, "__name__", "after")),
    "the text of a class": (lambda: _kind.__doc__ == "after", lambda: setattr(_kind, "__doc__", "after")),
}


@pytest.mark.parametrize("part", SAYING)
def test_what_a_function_or_a_class_says_of_itself(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "_function", _make_function())
    monkeypatch.setitem(globals(), "_kind", _make_class())
    read, change = SAYING[part]
    found = _answers(lambda: 3.0 if read() else 1.0, change)
    assert [x[0].item() for x in found] == [1.0] * 6 + [3.0] * 3


def test_modules_that_no_code_looks_for_are_not_compared(settings: ModuleType) -> None:
    def f(x: Tensor) -> Tensor:
        return x * _box.get("factor", 1.0)  # type: ignore[operator]

    compiled = dovetail.compile(f)
    for factor in (1.0, 2.0):
        settings.__dict__["factor"] = factor
        compiled(torch.ones(2))
    assert len(compiled.graphs) == 1
