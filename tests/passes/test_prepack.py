"""Packed weights: results as exact as eager's, laid out as eager's; what is fused, and what is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail import passes
from dovetail.ir.program import Program
from dovetail.ops import prims
from dovetail.passes import layer_rewrites
from dovetail.passes import prepack as prepack_on_graph_modules
from dovetail.passes.channels_last import channels_last
from dovetail.passes.prepack import PrepackReport, prepack
from dovetail.torch_compat import onednn
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import Recorded, assert_rounded_as, record
from tests.rotation import rotated
from tests.rounding import in_float64
from tests.torch_release import MATMUL_FIXES_SIZES

aten = torch.ops.aten


PASS = sys.modules["dovetail.passes.prepack"]  # the package has the function under this name


@pytest.fixture(autouse=True)
def small_convolutions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small."""
    monkeypatch.setattr(PASS, "_LARGE_CONVOLUTION", 0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test has the same weights and inputs, whatever ran before."""
    torch.manual_seed(0)


F = nn.functional

pytestmark = pytest.mark.skipif(not onednn.has_onednn(), reason="this torch has no oneDNN")


def _rewritten(model: nn.Module, *inputs: Tensor, dynamic: bool = False) -> tuple[Recorded, Program, PrepackReport]:
    recorded = record(model.eval(), *inputs, dynamic=dynamic)
    return recorded, *prepack(recorded.program, recorded.constants, recorded.infer)


def _check(model: nn.Module, report: PrepackReport, recorded: Recorded, program: Program, *inputs: Tensor) -> None:
    found = recorded.run(program, *inputs)
    with torch.no_grad():
        eager = model(*inputs)
    assert_rounded_as(found, eager, in_float64(model, *inputs))
    given = iter(inputs)
    args = [recorded.tensors[v.name] if v.name in recorded.tensors else next(given) for v in program.inputs]
    assert_described_as_made(program, args)


class Linear(nn.Module):
    """A linear layer large enough to be packed, and what is around it."""

    def __init__(self, tail: Callable[[Tensor], Any] = torch.relu, *, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 1024, bias=bias)
        self.tail = tail

    def forward(self, x: Tensor) -> Any:
        return self.tail(self.layer(x))


def test_before_and_after() -> None:
    x = torch.randn(2, 5, 256)
    _, program, report = _rewritten(Linear(F.gelu), x)
    assert body(program) == [
        "layer_weight_0_packed = prims.PACK_LINEAR(layer_weight_0, 10)",
        "gelu = prims.packed_linear('gelu')(arg_0, layer_weight_0_packed, layer_bias_1)",
        "return (gelu, None, None)",
    ]
    assert report == PrepackReport(
        asked=("layer_weight_0_packed",),
        opaque=("layer_weight_0_packed",),
        linears=("gelu",),
        fused=(("gelu", "gelu", ""),),
    )
    assert (
        str(report) == "packed 1 weights for 1 products and 0 convolutions, fused 1 with later nodes, 0 copies, left 0"
    )


TAILS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "nothing": ("none", lambda y: y),
    "relu": ("relu", torch.relu),
    "relu6": ("relu6", F.relu6),
    "gelu": ("gelu", F.gelu),
    "gelu by tanh": ("gelu_tanh", lambda y: F.gelu(y, approximate="tanh")),
    "silu": ("silu", F.silu),
    "sigmoid": ("sigmoid", torch.sigmoid),
    "tanh": ("tanh", torch.tanh),
    "hardswish": ("hardswish", F.hardswish),
    "hardsigmoid": ("hardsigmoid", F.hardsigmoid),
    "another clamp": ("none", lambda y: F.hardtanh(y, -2.0, 2.0)),
    "read twice": ("none", lambda y: (y.relu() + y).exp()),
    "viewed": ("gelu", lambda y: F.gelu(y.view(-1, 4, 256))),
    "activation twice": ("relu", lambda y: F.gelu(torch.relu(y))),
}


@pytest.mark.parametrize(
    ("name", "shape", "bias"), rotated([*product(TAILS, [(12, 256), (2, 6, 256), (2, 3, 4, 256)], [True, False])], 5)
)
def test_linear(name: str, shape: tuple[int, ...], bias: bool) -> None:
    activation, tail = TAILS[name]
    model, x = Linear(tail, bias=bias), torch.randn(shape)
    recorded, program, report = _rewritten(model, x)
    assert len(report.linears) == 1
    assert [fused[1] for fused in report.fused] == ([] if activation == "none" else [activation])
    assert prims.packed_linear(activation) in {node.target for node in program.nodes}
    _check(model, report, recorded, program, x)


@pytest.mark.parametrize(("activation", "tail"), [TAILS["gelu"], TAILS["nothing"], TAILS["viewed"]])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_of_a_symbolic_batch(activation: str, tail: Callable[[Tensor], Any], bias: bool) -> None:
    model, x = Linear(tail, bias=bias), torch.randn(4, 6, 256)
    recorded, program, report = _rewritten(model, x, dynamic=True)
    assert len(report.linears) == 1
    for rows in (4, 2, 9) if bias or not MATMUL_FIXES_SIZES else (4,):
        _check(model, report, recorded, program, torch.randn(rows, 6, 256))


class Returned(Linear):
    """Hands out what could be fused."""

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        return y, F.gelu(y)


def test_what_is_returned_is_not_fused() -> None:
    model, x = Returned(), torch.randn(2, 6, 256)
    recorded, program, report = _rewritten(model, x)
    assert report.fused == ()
    _check(model, report, recorded, program, x)


class Tied(nn.Module):
    """One weight in two layers, one of them turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) @ self.weight + (x @ self.weight).view(x.shape)


def test_a_weight_is_packed_once_for_each_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rewrites, "_MOST_IN_ORDER", 0)  # as if all were large
    model, x = Tied(), torch.randn(8, 512)
    recorded, program, report = _rewritten(model, x)
    assert len(report.linears) == 3
    assert len(report.asked) == 2
    _check(model, report, recorded, program, x)


class Unusual(nn.Module):
    """Products that are not linear layers, or not of this kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512))

    def forward(self, x: Tensor) -> Any:
        scaled = torch.addmm(x, x, self.weight, beta=2)
        added = torch.addmm(x, x, self.weight)
        return scaled, added, x @ x, self.weight @ self.weight, x.double() @ self.weight.double()


def test_reasons() -> None:
    x = torch.randn(512, 512) / 16
    recorded, program, report = _rewritten(Unusual(), x)
    assert program is recorded.program
    codes = [reason.partition(":")[0] for _, reason in report.left]
    assert codes == ["SCALED", "BIAS", "WEIGHT-CHANGES", "CONSTANT", "DTYPE"]
    recorded, program, report = _rewritten(nn.Linear(32, 32), torch.randn(4, 32))
    assert program is recorded.program
    assert report.left == (("addmm", "SMALL: [4, 32] @ [32, 32] is faster with the plain weight"),)
    _, _, report = _rewritten(nn.Linear(32, 32), torch.randn(1 << 14, 32))
    assert len(report.linears) == 1


def test_without_onednn_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PASS, "has_onednn", lambda: False)
    recorded, program, report = _rewritten(Linear(), torch.randn(12, 256))
    assert program is recorded.program
    assert [reason.partition(":")[0] for _, reason in report.left] == ["NO-ONEDNN"]


# --- convolutions ----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block and its head."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu, *, groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.second = nn.Conv2d(8, 16, 3, 2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(8, 16, 1, 2)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.stem(x))
        y = self.second(self.activation(self.first(x))) + self.shortcut(x)
        return self.activation(y).flatten(1)


BLOCKS = [*product(("relu", "silu", "gelu", "relu6", "hardswish"), [1, 2, 8], [False, True])]


@pytest.mark.parametrize(("tail", "groups", "dynamic"), rotated(BLOCKS, 5))
def test_residual_block(tail: str, groups: int, dynamic: bool) -> None:
    name, activation = TAILS[tail]
    model, x = Block(activation, groups=groups), torch.randn(2, 3, 8, 12)
    recorded, program, report = _rewritten(model, x, dynamic=dynamic)
    assert len(report.convolutions) == 4
    assert [(fused, bool(added)) for _, fused, added in report.fused] == [(name, False), (name, False), (name, True)]
    _check(model, report, recorded, program, x)
    if dynamic:
        _check(model, report, recorded, program, torch.randn(3, 3, 6, 10))


@pytest.mark.parametrize("size", [(2, 3, 6, 6), (1, 3, 6, 6), (1, 3, 3, 9)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 5, 1), nn.Conv2d(5, 1, 3)),
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
        ),
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, dilation=(1, 2), padding=(1, 2)), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
        ),
    ],
    ids=["one by one", "transposed", "dilated"],
)
def test_kinds_of_convolutions(make: Callable[[], nn.Module], size: tuple[int, ...]) -> None:
    model, x = make(), torch.randn(size)
    recorded, program, report = _rewritten(model, x)
    assert len(report.convolutions) >= 3
    _check(model, report, recorded, program, x)


def test_volumes() -> None:
    model = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3), nn.Conv3d(8, 4, 1))
    x = torch.randn(2, 3, 5, 6, 7)
    recorded, program, report = _rewritten(model, x)
    assert len(report.convolutions) == 3
    _check(model, report, recorded, program, x)


class Sums(nn.Module):
    """Sums that look like residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(3, 3, 1) for _ in range(4))
        self.shift = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(self.a(x), x, alpha=2)
        z = self.b(y)
        w = self.c(z + z)
        return self.d(w) + self.shift


def test_sums_that_are_not_fused() -> None:
    model, x = Sums(), torch.randn(2, 3, 8, 8)
    recorded, program, report = _rewritten(model, x)
    assert len(report.convolutions) == 4
    assert report.fused == ()
    _check(model, report, recorded, program, x)


def test_small_convolutions_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PASS, "_LARGE_CONVOLUTION", 1 << 20)
    recorded, program, report = _rewritten(Block(), torch.randn(2, 3, 8, 8))
    assert program is recorded.program
    assert len(report.left) == 4
    assert report.left[0] == ("convolution", "SMALL: 27648 multiplications are faster with the plain weight")
    _, _, report = _rewritten(Block(groups=8), torch.randn(2, 3, 64, 64), dynamic=True)
    assert [reason.partition(":")[0] for _, reason in report.left] == ["SMALL", "SMALL", "SMALL", "COPIES"]
    _, _, report = _rewritten(Block(), torch.randn(2, 3, 192, 192))
    assert len(report.convolutions) == 4


@pytest.mark.parametrize("dynamic", [False, True])
def test_after_channels_last(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    """Large convolutions read packed weights, small ones weights with the channels last; nothing is copied twice."""
    model, x = Block().eval(), torch.randn(2, 3, 32, 32)
    recorded = record(model, x, dynamic=dynamic)
    laid_out, first = channels_last(recorded.program, recorded.constants, recorded.infer)
    monkeypatch.setattr(PASS, "_LARGE_CONVOLUTION", 1 << 19)
    program, report = prepack(laid_out, recorded.constants, recorded.infer)
    if not dynamic:
        assert len(report.convolutions) == 2
        assert [name.partition("_weight")[0] for name in report.asked] == ["first", "second"]
        assert report.copies == ()
        assert first.copies == ("arg_0", "relu_2")
    _check(model, report, recorded, program, x)


def test_too_many_copies_leave_convolutions_alone() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    recorded, program, report = _rewritten(model, x)
    assert program is recorded.program
    assert report.left == (("convolution", "COPIES: 2 values would be copied for 1 convolutions"),)


def test_nan_is_not_lost() -> None:
    model, x = Block(torch.relu), torch.randn(2, 3, 8, 8)
    recorded, program, report = _rewritten(model, x)
    assert report.fused
    x[0, 0, 0, 0] = float("nan")
    with torch.no_grad():
        assert recorded.run(program, x)[0].isnan().equal(model(x).isnan())


# --- on graph modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_on_graph_modules(mode: str) -> None:
    model, x = Block().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        gm = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    before = gm.code
    made = prepack_on_graph_modules(gm)
    made.graph.lint()
    assert gm.code == before
    assert len(passes.plan_prepack(gm).convolutions) == 4
    with torch.no_grad():
        assert_rounded_as(made(x), model(x), in_float64(model, x))
    again = prepack_on_graph_modules(made)
    assert again.code == made.code
