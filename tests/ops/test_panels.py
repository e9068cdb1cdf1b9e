"""Weights in panels: they come back bit by bit; operands that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dovetail.ops.panels import PACK_PANELS, WIDTH, panel_linear, plain_weight

aten = torch.ops.aten


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100])
def test_panels_hold_the_weight(outputs: int) -> None:
    weight: Any = torch.randn(7, outputs).t()
    panels: Any = PACK_PANELS(weight)
    assert panels.shape == (-(-outputs // WIDTH), 7, WIDTH)
    assert torch.equal(plain_weight(panels, outputs), weight)
    assert panels.sum().item() == pytest.approx(weight.sum().item(), abs=1e-4)  # the rest is zeros


def test_the_primitive_runs_by_itself() -> None:
    x, weight, bias = torch.randn(2, 3, 7), torch.randn(40, 7), torch.randn(40)
    expected = nn.functional.linear(x, weight, bias).relu()
    for given in (weight, PACK_PANELS(weight)):
        torch.testing.assert_close(panel_linear("relu")(x, given, 40, bias), expected)


@pytest.mark.parametrize(
    ("x", "weight", "outputs", "bias"),
    [
        ((3, 8), (2, 7, 32), 40, None),  # other inputs
        ((3, 7), (2, 7, 32), 65, None),  # more outputs than there are
        ((3, 7), (2, 7, 32), 32, None),  # fewer panels would do
        ((3, 7), (2, 7, 32), 0, None),
        ((3, 7), (2, 7, 16), 40, None),  # narrower panels
        ((3, 7), (2, 7, 32), 40, (39,)),
        ((3, 7), (2, 7, 32), 40, (1, 40)),
        ((7,), (2, 7, 32), 40, None),
        ((3, 7), (39, 7), 40, None),
    ],
)
def test_what_does_not_fit(x: Any, weight: Any, outputs: int, bias: Any) -> None:
    given = torch.zeros(weight)
    with pytest.raises(ValueError, match=r"multiplied by|a bias of"):
        panel_linear("none")(torch.zeros(x), given, outputs, None if bias is None else torch.zeros(bias))


def test_other_dtypes() -> None:
    with pytest.raises(ValueError, match="float32"):
        panel_linear("none")(torch.zeros(3, 7).double(), torch.zeros(2, 7, 32), 40)
    with pytest.raises(ValueError, match="panels"):
        PACK_PANELS(torch.zeros(3, 7).double())
    with pytest.raises(ValueError, match="panels"):
        PACK_PANELS(torch.zeros(3, 7, 1))


def test_an_activation_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no activation"):
        panel_linear("softmax")
