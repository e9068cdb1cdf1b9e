"""`executors=("native", "aten")`: what is refused, and how; none of it needs llvmlite."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import BadOptionValue
from dovetail.execute.native import machine


def _double(x: torch.Tensor) -> torch.Tensor:
    return x + x


@pytest.fixture
def _without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> Any:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "llvmlite" else real(name, *rest)
    )
    machine.unavailable.cache_clear()
    yield
    machine.unavailable.cache_clear()


@pytest.mark.usefixtures("_without_llvmlite")
@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
@pytest.mark.parametrize("executors", [("native", "aten"), ["native"], "native", "native,aten"])
def test_without_llvmlite_the_error_says_how_to_install_it(door: Any, executors: Any) -> None:
    with pytest.raises(BadOptionValue, match="pip install llvmlite") as found:
        door(_double, executors=executors)
    assert "'native'" in str(found.value)
    assert "llvmlite is not installed" in str(found.value)


@pytest.mark.usefixtures("_without_llvmlite")
@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_without_llvmlite_the_default_runs(door: Any) -> None:
    assert door(_double)(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_unknown_names(door: Any) -> None:
    with pytest.raises(BadOptionValue, match="no such executor") as found:
        door(_double, executors=("nativ", "aten"))
    assert "native, aten" in str(found.value)


def test_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    machine.unavailable.cache_clear()
    try:
        with pytest.raises(BadOptionValue, match="this is riscv64"):
            dovetail.compile(_double, executors=("native", "aten"))
    finally:
        machine.unavailable.cache_clear()
