"""Memory that an operator of another library may have kept is not written once it ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail

_KEPT: list[torch.Tensor] = []


@torch.library.custom_op("dovetail_tests::keeping", mutates_args=())
def keeping(x: torch.Tensor) -> torch.Tensor:
    """Keeps what it is given, as a logger of activations does."""
    _KEPT.append(x)
    return x.abs()


@keeping.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _dead_after_it(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return keeping(x * 2) @ w


def _overwritten_before_it(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return keeping((x * 2).add(1).mul(3)) @ w + 1


def _a_view_of_it(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x * 2
    return keeping(h[:4].t()).sum() + (h.exp() @ w)


@pytest.mark.parametrize("compile_it", [dovetail.compile, dovetail.compile_step])
@pytest.mark.parametrize("fn", [_dead_after_it, _overwritten_before_it, _a_view_of_it])
def test_what_was_kept_stays(fn: Callable[..., torch.Tensor], compile_it: Any) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    _KEPT.clear()
    expected = fn(x, w)
    kept = _KEPT.pop().clone()
    compiled = compile_it(fn)
    for _ in range(3):
        _KEPT.clear()
        with torch.no_grad():
            assert torch.equal(compiled(x, w), expected)
        assert torch.equal(_KEPT[-1], kept)
    _KEPT.clear()
