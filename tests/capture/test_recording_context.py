"""Errors that torch raises while a program is recorded, by name, without what only torch's authors read."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import CaptureFailed


def _grid(theta: Tensor) -> Tensor:
    return F.affine_grid(theta, [theta.shape[0], 1, 2, 3], align_corners=True)


def test_operators_that_take_no_symbols_are_met_by_what_helps() -> None:
    compiled = dovetail.compile(_grid, dynamic=True)
    with pytest.raises(CaptureFailed, match=r"dynamic=False") as raised:
        compiled(torch.randn(4, 2, 3, requires_grad=True)).sum().backward()
    assert "frame #" not in str(raised.value)


def test_where_forward_takes_no_symbols_sizes_are_known() -> None:
    layer = nn.LSTM(3, 2)
    compiled = dovetail.compile(layer, dynamic=True)
    for length in (4, 6, 4):
        x = torch.randn(length, 5, 3, requires_grad=True)
        assert torch.equal(compiled(x)[0], layer(x)[0])
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
