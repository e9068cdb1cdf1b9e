"""A quick question after torch's modes says what the whole description of them says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from dovetail.capture.ambient_modes import SameModes, ambient_modes


@contextmanager
def _set(put: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def _hook_of_all_modules() -> Iterator[None]:
    handle = register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


_CHANGES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dtype": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: _set(torch.use_deterministic_algorithms, True, False),
    "precision": lambda: _set(torch.set_float32_matmul_precision, "medium", "highest"),
    "device": lambda: torch.device("meta"),
    "kernels": lambda: _set(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "hooks": _hook_of_all_modules,
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_change_is_seen_and_that_it_is_taken_back(name: str) -> None:
    usual = SameModes(ambient_modes())
    assert usual()
    assert usual()
    with _CHANGES[name]():
        changed = SameModes(ambient_modes())
        assert not usual()
        assert changed()
        assert changed()
    assert usual()
    assert not changed()


def test_another_precision_of_a_backend_is_seen() -> None:
    """It has no name then, and torch's own question raises."""
    usual = SameModes(ambient_modes())
    assert usual()
    before = torch.backends.mkldnn.matmul.fp32_precision
    with _set(lambda x: setattr(torch.backends.mkldnn.matmul, "fp32_precision", x), "bf16", before):
        assert not usual()
    assert usual()
