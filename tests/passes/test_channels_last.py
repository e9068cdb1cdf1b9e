"""Convolutions with the channels last: results as exact as eager's, laid out as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail import passes
from dovetail.errors import NotFunctional
from dovetail.ir.program import Program
from dovetail.passes.channels_last import ChannelsLastReport, channels_last
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import Recorded, assert_rounded_as, record
from tests.rotation import rotated
from tests.rounding import in_float64

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test has the same weights and inputs, whatever ran before."""
    torch.manual_seed(0)


class Convolved(nn.Module):
    """Four convolutions with a residual connection, and what follows them."""

    def __init__(self, tail: Callable[[Tensor], Any], channels: int = 8, *, groups: int = 1, **options: Any) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, **options)
        self.third = nn.Conv2d(channels, channels, 1, bias=False)
        self.fourth = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.tail = tail

    def forward(self, x: Tensor) -> Any:
        y = torch.relu(self.first(x))
        return self.tail(self.fourth(torch.relu(y + self.third(self.second(y)))))


def _rewritten(model: nn.Module, x: Tensor, dynamic: bool = False) -> tuple[Recorded, Program, ChannelsLastReport]:
    recorded = record(model.eval(), x, dynamic=dynamic)
    return recorded, *channels_last(recorded.program, recorded.constants, recorded.infer)


def _check(model: nn.Module, x: Tensor, recorded: Recorded, program: Program) -> None:
    (found,) = recorded.run(program, x)
    with torch.no_grad():
        eager = model(x)
    assert_rounded_as(found, eager, in_float64(model, x))
    assert_described_as_made(program, [recorded.tensors.get(value.name, x) for value in program.inputs])


def test_before_and_after() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)),
        torch.randn(2, 3, 6, 6),
    )
    recorded, program, report = _rewritten(model, x)
    assert report.asked == ("_0_weight_0_channels_last", "_2_weight_2_channels_last", "_3_weight_4_channels_last")
    lines = [line.partition(" = ")[::2] for line in body(program)[:-1]]
    assert [(name, call.partition("(")[0]) for name, call in lines] == [
        ("_0_weight_0_channels_last", "clone.default"),
        ("convolution_3", "convolution.default"),
        ("relu_1", "relu.default"),
        ("_2_weight_2_channels_last", "clone.default"),
        ("convolution_1_1", "convolution.default"),
        ("_3_weight_4_channels_last", "clone.default"),
        ("convolution_2_1", "convolution.default"),
        ("convolution_2", "prims.COPY_TO_LAYOUT"),
    ]
    assert report.convolutions == ("convolution_3", "convolution_1_1", "convolution_2_1")
    assert report.copies == ("arg_0", "convolution_2")
    assert str(report) == "3 convolutions in channels-last layout, 2 copies, left 0 convolutions unchanged"
    _check(model, x, recorded, program)


TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda y: y,
    "flat": lambda y: y.flatten(1) * 2,
    "viewed": lambda y: y.view(y.shape[0], -1).exp(),
    "pooled": lambda y: nn.functional.adaptive_avg_pool2d(nn.functional.max_pool2d(y, 3, 2, 1), 1).flatten(1),
    "strided": lambda y: y.as_strided((2, 4), (5, 1), 3) * 2,
    "tokens": lambda y: y.flatten(2).transpose(1, 2).softmax(-1),
    "permuted": lambda y: y.permute(0, 2, 3, 1).contiguous(),
    "einsum": lambda y: torch.einsum("bchw,bdhw->bcd", y, y),
    "upsampled": lambda y: torch.cat([nn.functional.interpolate(y, scale_factor=2.0), y.repeat(1, 1, 2, 2)], 1),
    "rolled": lambda y: y.roll(1, 2),
    "normalized": lambda y: nn.functional.group_norm(y, 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", rotated([*TAILS], 4))
def test_as_exact_and_laid_out_as_eager(name: str, dynamic: bool) -> None:
    model, x = Convolved(TAILS[name]), torch.randn(2, 3, 8, 12)
    recorded, program, report = _rewritten(model, x, dynamic)
    assert len(report.convolutions) == (3 if dynamic else 4)
    _check(model, x, recorded, program)
    if dynamic:
        assert [reason.partition(":")[0] for _, reason in report.left] == ["SIZES"]
        if name != "upsampled":  # whose scale is recorded as a size
            _check(model, torch.randn(3, 3, 10, 16), recorded, program)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Convolved(torch.relu, groups=2),
        lambda: Convolved(torch.relu, groups=8),
        lambda: Convolved(torch.relu, dilation=1, padding_mode="reflect"),
        lambda: Convolved(torch.relu, channels=1),
        lambda: nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 5, 1), nn.Conv2d(5, 1, 3)),
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)
        ),
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)
        ),
    ],
    ids=["groups", "depthwise", "reflected", "one channel", "one by one", "transposed", "normalized"],
)
@pytest.mark.parametrize("size", rotated([(2, 3, 8, 8), (1, 3, 8, 8), (1, 3, 7, 15)], 3))
def test_kinds_of_convolutions(make: Callable[[], nn.Module], size: tuple[int, ...]) -> None:
    model, x = make(), torch.randn(size)
    recorded, program, _ = _rewritten(model, x)
    _check(model, x, recorded, program)


def test_volumes() -> None:
    model = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3), nn.Conv3d(8, 4, 1))
    x = torch.randn(2, 3, 5, 6, 7)
    recorded, program, report = _rewritten(model, x)
    assert len(report.convolutions) == 3
    _check(model, x, recorded, program)


class Shared(nn.Module):
    """An image that two convolutions read, and a weight that another operator reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.last, self.again = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.left(x) * self.right(x))
        return self.again(y).mean((2, 3)) * self.last.weight.flatten().sum()


def test_what_several_read_is_converted_once() -> None:
    model, x = Shared(), torch.randn(2, 3, 8, 8)
    recorded, program, report = _rewritten(model, x)
    assert report.copies == ("arg_0",)
    readers = [node for node in program.nodes if node.target is aten.convolution.default]
    assert readers[0].args[0] is readers[1].args[0]
    _check(model, x, recorded, program)


# --- what is left ----------------------------------------------------------------------------------------------------


def test_no_convolution_gives_the_same_program() -> None:
    recorded, program, report = _rewritten(nn.Linear(3, 3), torch.randn(2, 3))
    assert program is recorded.program
    assert str(report) == "left all 0 convolutions unchanged: NO-CONVOLUTIONS: no convolution has a constant weight"


def test_a_single_convolution_does_not_pay() -> None:
    recorded, program, report = _rewritten(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8))
    assert program is recorded.program
    assert report.reason == "COPIES: 2 values would be copied for 1 convolutions"
    assert report.left == (("convolution", "NOT-WORTH-IT"),)


class OfArguments(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.conv2d(x, weight), weight)


def test_reasons() -> None:
    recorded = record(OfArguments(), torch.randn(2, 3, 8, 8), torch.randn(3, 3, 3, 3))
    program, report = channels_last(recorded.program, recorded.constants, recorded.infer)
    assert program is recorded.program
    assert {reason.partition(":")[0] for _, reason in report.left} == {"WEIGHT-CHANGES"}
    _, _, report = _rewritten(
        nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)).double(), torch.randn(2, 3, 8, 8).double()
    )
    assert {reason for _, reason in report.left} == {"DTYPE: its weight is of torch.float64"}
    _, _, report = _rewritten(nn.Conv1d(3, 3, 3), torch.randn(2, 3, 8))
    assert report.left == (("convolution", "RANK: its input has 3 dimensions"),)
    _, _, report = _rewritten(nn.ConvTranspose2d(3, 3, 3), torch.randn(2, 3, 8, 8))
    assert report.left[0][1].partition(":")[0] == "TRANSPOSED"
    layers = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3)
    _, _, report = _rewritten(nn.Sequential(*layers), torch.randn(2, 1, 9, 9))
    assert [reason.partition(":")[0] for _, reason in report.left] == ["ONE-CHANNEL"]


def test_doing_it_again_changes_nothing_more() -> None:
    recorded, program, _ = _rewritten(Convolved(torch.relu), torch.randn(2, 3, 8, 8))
    again, second = channels_last(program, recorded.constants, recorded.infer)
    assert second.asked == ()
    assert len(again.nodes) == len(program.nodes)


# --- on graph modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_on_graph_modules(mode: str) -> None:
    model, x = Convolved(TAILS["pooled"]).eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        gm = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    before = gm.code
    made = passes.channels_last(gm)
    made.graph.lint()
    assert gm.code == before
    assert len(passes.plan_channels_last(gm).convolutions) == (4 if mode == "fake" else 3)
    with torch.no_grad():
        assert_rounded_as(made(x), model(x), in_float64(model, x))


def test_graph_modules_refuse_writes() -> None:
    def writes(x: Tensor) -> Tensor:
        return torch.conv2d(x, torch.ones(3, 3, 1, 1)).relu_()

    with pytest.raises(NotFunctional):
        passes.channels_last(make_fx(writes)(torch.randn(1, 3, 4, 4)))
