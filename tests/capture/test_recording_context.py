"""Errors that torch raises while a program is recorded, by name, without what only torch's authors read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import CaptureFailed


def _grid(theta: Tensor) -> Tensor:
    return F.affine_grid(theta, [theta.shape[0], 1, 2, 3], align_corners=True)


@pytest.mark.parametrize(("function", "shape"), [(nn.LSTM(3, 2), (5, 3)), (_grid, (2, 3))], ids=["forward", "backward"])
def test_where_operators_take_no_symbols_sizes_are_known(
    function: Callable[[Tensor], Any], shape: tuple[int, ...]
) -> None:
    compiled = dovetail.compile(function, dynamic=True)
    for length in (4, 6, 4):
        x = torch.randn(length, *shape)
        gradients = []
        for run in (compiled, function):
            leaf = x.clone().requires_grad_()
            result = run(leaf)
            (result if isinstance(result, Tensor) else result[0]).sum().backward()
            gradients.append(leaf.grad)
        assert torch.equal(*gradients)
    assert compiled.stats.captures == 2


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_torch_does_not_log_what_is_raised(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", told.append)
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handlers", [handler])
    with pytest.raises((RuntimeError, CaptureFailed)):
        door(torch.mm)(torch.randn(3, 4), torch.randn(5, 6))
    assert not told
