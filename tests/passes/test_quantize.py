"""Products of 8-bit integers: what is rewritten, how far results are from eager's, and what is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail import passes
from dovetail.ops import prims
from dovetail.passes import quantize as quantize_on_graph_modules
from dovetail.passes.quantize import quantize
from dovetail.torch_compat.onednn_low_precision import multiplies_int8
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import record

pytestmark = pytest.mark.skipif(not multiplies_int8(), reason="this processor has no exact products of 8-bit integers")

PASS = sys.modules["dovetail.passes.quantize"]  # the package has the function under this name


@pytest.fixture(autouse=True)
def small_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small; and each test has the same numbers."""
    monkeypatch.setattr(PASS, "_LARGE_WEIGHT", 1 << 8)
    torch.manual_seed(0)


class Linear(nn.Module):
    """A linear layer, and what is around it."""

    def __init__(self, tail: Callable[[Tensor], Any] = torch.relu, *, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 64, bias=bias)
        self.tail = tail

    def forward(self, x: Tensor) -> Any:
        return self.tail(self.layer(x))


def _close(found: Tensor, expected: Tensor) -> None:
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_before_and_after() -> None:
    recorded = record(Linear(F.gelu).eval(), torch.randn(2, 5, 32))
    program, report = quantize(recorded.program, recorded.constants, recorded.infer)
    assert body(program) == [
        "arg_0_ranges = prims.ROW_RANGES(arg_0)",
        "arg_0_levels = prims.QUANTIZE_ROWS(arg_0, arg_0_ranges)",
        "layer_weight_0_scales = prims.ROW_SCALES(layer_weight_0)",
        "layer_weight_0_levels = prims.QUANTIZE_WEIGHT(layer_weight_0, layer_weight_0_scales)",
        "layer_weight_0_sums = prims.WEIGHT_SUMS(layer_weight_0_levels, layer_weight_0_scales)",
        "layer_weight_0_packed = prims.PACK_INT8(layer_weight_0_levels, 10)",
        "gelu = prims.int8_linear('gelu')(arg_0_levels, layer_weight_0_packed, arg_0_ranges, layer_weight_0_scales,"
        " layer_weight_0_sums, layer_bias_1)",
        "return (gelu, None, None)",
    ]
    assert report.linears == ("gelu",)
    assert report.opaque == ("layer_weight_0_packed",)
    assert set(report.asked) - set(report.opaque) == {f"layer_weight_0_{part}" for part in ("levels", "scales", "sums")}
    assert str(report) == "1 products in int8, of 1 weights; left 0"


@pytest.mark.parametrize("tail", [torch.relu, F.gelu, F.silu, lambda y: y, lambda y: (y.relu() + y).exp()])
@pytest.mark.parametrize("shape", [(12, 32), (2, 6, 32), (2, 3, 4, 32)])
def test_linear(tail: Callable[[Tensor], Any], shape: tuple[int, ...]) -> None:
    model, x = Linear(tail, bias=len(shape) != 3).eval(), torch.randn(shape)
    recorded = record(model, x)
    program, report = quantize(recorded.program, recorded.constants, recorded.infer)
    assert len(report.linears) == 1
    with torch.no_grad():
        _close(recorded.run(program, x)[0], model(x))
    args = [recorded.tensors.get(value.name, x) for value in program.inputs]
    assert_described_as_made(program, args)


def test_a_symbolic_batch() -> None:
    model = Linear(F.gelu).eval()
    recorded = record(model, torch.randn(4, 6, 32), dynamic=True)
    program, _ = quantize(recorded.program, recorded.constants, recorded.infer)
    for rows in (4, 2, 9):
        x = torch.randn(rows, 6, 32)
        with torch.no_grad():
            _close(recorded.run(program, x)[0], model(x))


class Shared(nn.Module):
    """Layers that read one tensor, one weight in two layers, and a weight that is stored transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 48)
        self.turned = nn.Parameter(torch.randn(32, 40))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.first(x), self.second(x), self.first(self.first(x).tanh()), x @ self.turned


def test_what_is_shared_is_rounded_once() -> None:
    model, x = Shared().eval(), torch.randn(7, 32)
    recorded = record(model, x)
    program, report = quantize(recorded.program, recorded.constants, recorded.infer)
    targets = [node.target for node in program.nodes]
    assert len(report.linears) == 5
    assert targets.count(prims.PACK_INT8) == 3
    assert targets.count(prims.QUANTIZE_ROWS) == 2
    with torch.no_grad():
        for found, expected in zip(recorded.run(program, x), model(x), strict=True):
            _close(found, expected)


class Left(nn.Module):
    """Products that stay: of a small weight, of no constant, of doubles, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(8, 8), nn.Linear(64, 64).double()
        self.image = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return self.small(x), x @ y, self.large(y.double().repeat(1, 8)), self.image(x.view(1, 8, 3, 3))


def test_what_stays_says_why() -> None:
    model, inputs = Left().eval(), (torch.randn(9, 8), torch.randn(8, 8))
    recorded = record(model, *inputs)
    program, report = quantize(recorded.program, recorded.constants, recorded.infer)
    assert program is recorded.program
    assert report.changed == 0
    assert [reason.split(":")[0] for _, reason in report.left] == ["SMALL", "WEIGHT-CHANGES", "DTYPE"]


def test_wide_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PASS, "MOST_TERMS", 16)
    recorded = record(Linear().eval(), torch.randn(4, 32))
    assert quantize(recorded.program, recorded.constants, recorded.infer)[1].left[0][1].startswith("WIDE")


def test_on_graph_modules() -> None:
    model, x = Linear(F.gelu).eval(), torch.randn(5, 32)
    with torch.no_grad():
        gm = make_fx(model)(x)
        made = quantize_on_graph_modules(gm, x)
        _close(made(x), model(x))
    assert passes.plan_quantize(gm, x).changed == 1
