"""`executors=("native", "aten")`: what is refused, and how; none of it needs llvmlite."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import BadOptionValue
from dovetail.execute.installed import default_executors
from dovetail.execute.native import machine
from dovetail.pipeline.doors import AOT, BACKEND, COMPILE, COMPILE_STEP, FREEZE, LOAD, Door
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.options import resolve_options


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
    assert default_executors() == ("aten",)


@pytest.mark.parametrize(
    ("door", "names"),
    [
        (COMPILE, ["native", "aten"]),
        (BACKEND, ["native", "aten"]),
        (COMPILE_STEP, ["native", "aten"]),
        (FREEZE, ["auto", "aten"]),
        (LOAD, ["auto", "aten"]),
        (AOT, ["aten"]),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_default_of_each_way_in(door: Door, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    assert [e.name for e in make_executors(resolve_options({}, (), door)).executors] == names
    monkeypatch.setenv("DOVETAIL_EXECUTORS", "aten")
    assert [e.name for e in make_executors(resolve_options({}, (), door)).executors] == ["aten"]
    chosen = resolve_options({"executors": "native,aten"}, (), door) if "executors" in door.reads else None
    assert chosen is None or [e.name for e in make_executors(chosen).executors] == ["native", "aten"]


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_unknown_names(door: Any) -> None:
    with pytest.raises(BadOptionValue, match="no such executor") as found:
        door(_double, executors=("nativ", "aten"))
    assert "native, aten" in str(found.value)


def test_an_old_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(machine.importlib.metadata, "version", lambda _: "0.44.0rc1")
    machine.unavailable.cache_clear()
    try:
        assert default_executors() == ("aten",)
        with pytest.raises(BadOptionValue, match=r"older than 0\.45"):
            dovetail.compile(_double, executors=("native", "aten"))
    finally:
        machine.unavailable.cache_clear()


def test_where_no_memory_may_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")

    def refuses() -> None:
        raise RuntimeError("mprotect: permission denied\nmore")

    monkeypatch.setattr(machine, "driver", refuses)
    machine.unavailable.cache_clear()
    try:
        assert dovetail.compile(_double)(torch.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(BadOptionValue, match="LLVM failed: RuntimeError: mprotect: permission denied"):
            dovetail.compile(_double, executors=("native", "aten"))
    finally:
        machine.unavailable.cache_clear()


def test_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    machine.unavailable.cache_clear()
    try:
        with pytest.raises(BadOptionValue, match="this is riscv64"):
            dovetail.compile(_double, executors=("native", "aten"))
    finally:
        machine.unavailable.cache_clear()
