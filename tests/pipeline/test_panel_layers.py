"""Which convolutions and products run over panels, and what they become without machine code."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from torch import nn

from dovetail.ir.program import Program
from dovetail.passes.panels import panels
from dovetail.passes.prepack import prepack
from dovetail.pipeline.panel_layers import over_packed, over_panels
from dovetail.torch_compat.onednn import has_onednn
from tests.passes.described import assert_described_as_made
from tests.passes.recorded_models import Recorded, assert_rounded_as, record
from tests.rounding import in_float64

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")


_IS_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"


def _names(program: Program) -> Counter[str]:
    return Counter(getattr(node.target, "name", "") for node in program.nodes if hasattr(node.target, "name"))


def _check(recorded: Recorded, program: Program, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        assert_rounded_as(recorded.run(program, x), model(x), in_float64(model, x))
    assert_described_as_made(program, [recorded.tensors.get(value.name, x) for value in program.inputs])


@pytest.mark.parametrize(
    ("layer", "is_chosen"),
    [
        (nn.Conv2d(16, 32, 1), True),
        (nn.Conv2d(16, 32, 3, 2, 1), True),
        (nn.Conv2d(16, 16, 5, 1, 2, groups=16), True),
        (nn.Conv2d(16, 256, 1), True),  # of pixels
        (nn.Conv2d(640, 4, 1), _IS_WIDE),  # of pixels, and few outputs
        (nn.Conv2d(16, 256, 3, padding=1), _IS_WIDE),  # large
        (nn.Conv2d(16, 33, 3, padding=1), False),  # large, and panels that are half empty
        (nn.Conv2d(16, 32, 3, groups=2), False),
        (nn.Conv2d(16, 32, 3, dilation=2), False),
        (nn.Conv2d(16, 32, 1, groups=16), False),  # two outputs for each channel
    ],
)
def test_convolutions(layer: nn.Conv2d, is_chosen: bool) -> None:
    model, x = nn.Sequential(layer, nn.SiLU()).eval(), torch.randn(2, layer.in_channels, 24, 24)
    x = x.to(memory_format=torch.channels_last)
    recorded = record(model, x)
    program, _ = prepack(recorded.program, recorded.constants, recorded.infer)
    made = over_panels(program)
    assert _names(made)["panel_conv_silu"] == is_chosen
    assert _names(made)["packed_conv_silu"] == (not is_chosen)
    assert (made is program) == (not is_chosen)
    _check(recorded, made, model, x)


class _Residual(nn.Module):
    """A convolution to whose result its input is added."""

    def __init__(self, tail: nn.Module, groups: int) -> None:
        super().__init__()
        self.layer, self.tail = nn.Conv2d(16, 16, 3, padding=1, groups=groups), tail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.tail(x + self.layer(x))
        return made


def test_sums_are_part_of_convolutions_but_for_each_channel_by_itself() -> None:
    x = torch.randn(2, 16, 16, 16).to(memory_format=torch.channels_last)
    for tail, groups in product((nn.Identity(), nn.ReLU()), (1, 16)):
        is_split = groups > 1 and isinstance(tail, nn.Identity)
        model = _Residual(tail, groups).eval()
        recorded = record(model, x)
        program, _ = prepack(recorded.program, recorded.constants, recorded.infer)
        made = over_panels(program)
        assert any(node.target is torch.ops.aten.add.Tensor for node in made.nodes) == is_split
        assert _names(made)["panel_conv" if isinstance(tail, nn.Identity) else "panel_conv_relu"] == 1
        _check(recorded, made, model, x)


class _Padded(nn.Module):
    """Convolutions of an image with zeros around, which is read in another way, too, or not."""

    def __init__(self, pads: tuple[int, ...], groups: int, *, is_read: bool, value: float = 0.0) -> None:
        super().__init__()
        self.layer, self.pads, self.is_read = nn.Conv2d(16, 16, 3, 2, 1, groups=groups), pads, is_read
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(x.relu(), self.pads, value=self.value)
        made: torch.Tensor = self.layer(padded)
        return made + padded.mean() if self.is_read else made


@pytest.mark.parametrize(
    ("pads", "is_read", "value", "is_left"),
    [
        ((0, 1, 0, 1), False, 0.0, True),
        ((1, 0, 1, 1), False, 0.0, True),
        ((4, 5, 0, 3), False, 0.0, True),  # more than the weight reaches
        ((0, 1, 0, 1), True, 0.0, False),
        ((0, 1, 0, 1), False, 0.5, False),
        ((0, -1, 0, 1), False, 0.0, False),
        ((0, 1), False, 0.0, False),
    ],
)
def test_padding_is_left_to_convolutions(pads: tuple[int, ...], is_read: bool, value: float, is_left: bool) -> None:
    x = torch.randn(2, 16, 12, 11).to(memory_format=torch.channels_last)
    for groups in (1, 16):
        model = _Padded(pads, groups, is_read=is_read, value=value).eval()
        recorded = record(model, x)
        program, _ = prepack(recorded.program, recorded.constants, recorded.infer)
        made = over_panels(program)
        assert any(node.target is torch.ops.aten.constant_pad_nd.default for node in made.nodes) != is_left
        assert _names(made)["panel_conv"] == 1
        _check(recorded, made, model, x)


def test_convolutions_of_each_channel_by_itself_are_chosen_up_to_large_ones() -> None:
    for channels, size, is_chosen in ((32, 112, True), (256, 112, False)):
        model = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=channels)).eval()
        x = torch.empty(1, channels, size, size).to(memory_format=torch.channels_last)
        recorded = record(model, x)
        program, _ = prepack(recorded.program, recorded.constants, recorded.infer)
        assert _names(over_panels(program))["panel_conv"] == is_chosen


def test_products_without_machine_code() -> None:
    model, x = nn.Sequential(nn.Linear(256, 300), nn.GELU()).eval(), torch.randn(3, 256)
    recorded = record(model, x)
    program, _ = panels(recorded.program, recorded.constants, recorded.infer)
    assert _names(program) == {"pack_panels": 1, "panel_linear_gelu": 1}
    made = over_packed(program)
    assert _names(made) == {"pack_linear": 1, "packed_linear_gelu": 1}
    with torch.no_grad():
        assert_rounded_as(recorded.run(made, x), model(x), in_float64(model, x))
