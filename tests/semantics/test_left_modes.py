"""Modes of torch that a function leaves otherwise than it found them: set after each call, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import DovetailError, OtherSettingsInside, PythonSideEffect
from dovetail.torch_compat.modes import set_switches, switches

SET_AGAIN: dict[str, Callable[[], Any]] = {
    "grad": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
}
REFUSED: dict[str, Callable[[], Any]] = {
    "set_num_threads": lambda: torch.set_num_threads(1),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "set_autocast_dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "set_anomaly_enabled": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = switches()
    torch.set_num_threads(2)
    torch.compiler.reset()
    yield
    _set_back(before)


def _set_back(before: dict[str, Any]) -> None:
    now = switches()
    set_switches({name: value for name, value in before.items() if value != now[name]})


def _backend(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(f, backend="dovetail")


def _aot(f: Callable[..., Any]) -> Callable[..., Any]:
    return dovetail.aot_function(f, fw_compiler=lambda gm, inputs: gm)


@pytest.mark.parametrize("door", [dovetail.compile, _aot, _backend])
@pytest.mark.parametrize("name", SET_AGAIN)
def test_what_eager_leaves_set_is_set_after_every_call(name: str, door: Callable[..., Any]) -> None:
    switch = SET_AGAIN[name]

    def program(x: Tensor) -> Tensor:
        made = x * x
        switch()
        return made

    before = switches()
    compiled = door(program)
    for _ in range(3):
        found = []
        for called in (program, compiled):
            _set_back(before)
            made = called(torch.ones(3, requires_grad=True))
            found.append((made.requires_grad, made.dtype, switches()))
        assert found[0] == found[1]


def test_autocast_left_on() -> None:
    def program(x: Tensor) -> Tensor:
        torch.set_autocast_enabled("cpu", True)
        return x @ x

    compiled = dovetail.compile(program)
    for _ in range(2):
        assert compiled(torch.ones(2, 2)).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)


@pytest.mark.parametrize("name", REFUSED)
def test_modes_that_no_program_is_guarded_by_are_refused(name: str) -> None:
    switch = REFUSED[name]

    def program(x: Tensor) -> Tensor:
        switch()
        return x * x

    before = switches()
    with pytest.raises((PythonSideEffect, OtherSettingsInside), match=name):
        dovetail.compile(program)(torch.ones(3))
    assert switches() == before


def test_freeze_refuses_them() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.set_default_dtype(torch.float64)
            return x * x

    with pytest.raises(DovetailError, match="set_default_dtype"):
        dovetail.freeze(Model(), (torch.ones(3),))


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
@pytest.mark.parametrize("switch", ["mkldnn", "threads", "dtype"])
def test_operators_under_other_settings_than_the_call_began_with_are_refused(
    switch: str, door: Callable[..., Any]
) -> None:
    weight = torch.randn(4, 3, 3, 3)

    def program(x: Tensor) -> Tensor:
        if switch == "mkldnn":
            torch._C._set_mkldnn_enabled(False)  # `torch.backends.mkldnn.flags` warns of what is not for this machine
            try:
                return torch.conv2d(x, weight)
            finally:
                torch._C._set_mkldnn_enabled(True)
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        try:
            if switch == "threads":
                torch.set_num_threads(1)
            else:
                torch.set_default_dtype(torch.float64)
            return x + torch.ones(3)
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)

    compiled = door(program)
    if door is dovetail.compile_step:
        compiled(torch.randn(2, 3, 5, 3))
    with pytest.raises(OtherSettingsInside, match=r"under torch\."):
        compiled(torch.randn(2, 3, 5, 3))


OF_DEFAULT_DTYPE: dict[str, Callable[[Tensor], Tensor]] = {
    "quotients of integers": lambda x: x / 2,
    "roots of integers": torch.sqrt,
    "new tensors": lambda x: torch.zeros(2),
    "ranges": lambda x: torch.arange(0, 1, 0.25),
    "draws": lambda x: torch.rand(2),
}


@pytest.mark.parametrize("name", OF_DEFAULT_DTYPE)
def test_graphs_that_set_the_default_dtype_before_operators_that_look_at_it_are_refused(name: str) -> None:
    """Dynamo has set it already when it hands its graph over."""

    def program(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return OF_DEFAULT_DTYPE[name](x)

    try:
        with pytest.raises(Exception, match=r"under torch\.set_default_dtype"):
            torch.compile(program, backend="dovetail")(torch.arange(3))
    finally:
        torch.set_default_dtype(torch.float32)
        torch._dynamo.reset()


@pytest.mark.parametrize("name", ["use_deterministic_algorithms", "set_float32_matmul_precision"])
def test_graphs_that_switch_kernels_before_operators_are_refused(name: str) -> None:
    """They ran under the setting of the caller: `empty` was not filled, for one."""
    value: Any = True if name == "use_deterministic_algorithms" else "medium"

    def program(x: Tensor) -> Tensor:
        getattr(torch, name)(value)
        return x + torch.empty(3)

    with pytest.raises(Exception, match="DT-CAPTURE-015"):
        _backend(program)(torch.ones(3))
