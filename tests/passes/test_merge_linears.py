"""Linear layers over one input as one layer: what is merged, what it gives, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear, scaled_dot_product_attention

import dovetail.passes
from dovetail.ir.program import Program
from dovetail.passes.merge_linears import MergeLinearsReport, merge_linears
from tests.passes.recorded_models import Recorded, assert_rounded_as, record
from tests.rotation import rotated
from tests.rounding import in_float64
from tests.torch_release import MATMUL_FIXES_SIZES

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


class _Three(nn.Module):
    """Three projections of one input, and what is made of them."""

    def __init__(
        self, function: Callable[..., Any], bias: bool | tuple[bool, ...] = True, sizes: Any = (8, 8, 8)
    ) -> None:
        super().__init__()
        biases = bias if isinstance(bias, tuple) else (bias,) * 3
        self.q, self.k, self.v = (nn.Linear(8, size, bias=b) for size, b in zip(sizes, biases, strict=True))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.q(x), self.k(x), self.v(x))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [t.view(t.shape[0], t.shape[1], 2, 4).transpose(1, 2) for t in (q, k, v)]
    mixed = scaled_dot_product_attention(*heads)
    return mixed.transpose(1, 2).reshape(q.shape)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [t.view(t.shape[0], t.shape[1], 2, 4).transpose(1, 2) for t in (q, k, v)]
    weights = (heads[0] @ heads[1].transpose(-1, -2)).softmax(-1)
    return (weights @ heads[2]).transpose(1, 2).reshape(q.shape)


def _total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.sin() + k.cos() * v


def _gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([q.sigmoid() * k, torch.layer_norm(v, (v.shape[-1],))], -1)


def _merge(recorded: Recorded) -> tuple[Program, MergeLinearsReport]:
    return merge_linears(recorded.program, recorded.constants, recorded.infer)


def _products(program: Program) -> int:
    return sum(node.target in (aten.mm.default, aten.addmm.default, aten.linear.default) for node in program.nodes)


def _check(model: nn.Module, *calls: Tensor, merged: int = 3, products: int = 1) -> Program:
    """Merge, and compare with eager for each call; several calls: with symbolic sizes."""
    recorded = record(model.eval(), calls[0], dynamic=len(calls) > 1)
    program, report = _merge(recorded)
    assert sum(len(row.layers) for row in report.merged) == merged, str(report)
    assert _products(program) == products
    assert set(report.asked) <= {v.name for node in program.nodes for v in node.results()}
    for x in calls:
        with torch.no_grad():
            eager = model(x)
        (found,) = recorded.run(program, x)
        assert_rounded_as(found, eager, in_float64(model, x))
    return program


# --- what is merged -------------------------------------------------------------------------------------------------


def test_before_and_after() -> None:
    recorded = record(_Three(_total), torch.randn(5, 8))
    program, report = _merge(recorded)
    targets = [str(node.target).removeprefix("aten.") for node in program.nodes]
    assert targets == [
        *("cat.default", "t.default", "cat.default", "addmm.default"),
        *("slice.Tensor", "slice.Tensor", "slice.Tensor"),
        *("sin.default", "cos.default", "mul.Tensor", "add.Tensor"),
    ]
    assert report.asked == ("addmm_weight", "addmm_bias")
    (row,) = report.rows
    assert row.layers == ("addmm", "addmm_1", "addmm_2")
    assert str(row).startswith("addmm, addmm_1, addmm_2: MERGED: they are slices of addmm_merged")
    assert row.origin.endswith("(q)")
    assert str(report).startswith("merged 3 linear layers into 1\n  addmm, ")


@pytest.mark.parametrize("function", rotated([_attention, _plain_attention, _total, _gated], 4))
@pytest.mark.parametrize("bias", [True, False])
def test_three_dimensions(function: Callable[..., Any], bias: bool) -> None:
    _check(_Three(function, bias), torch.randn(2, 5, 8))
    if bias or not MATMUL_FIXES_SIZES:
        _check(_Three(function, bias), torch.randn(2, 5, 8), torch.randn(3, 7, 8))


@pytest.mark.parametrize("bias", [True, False])
def test_other_sizes(bias: bool) -> None:
    model = _Three(lambda q, k, v: torch.cat([q.relu(), k.tanh(), v.exp()], -1), bias, (3, 1, 9))
    _check(model, torch.randn(4, 8))
    _check(model, torch.randn(4, 8), torch.randn(9, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    _check(_Three(_total).to(dtype), torch.randn(4, 8, dtype=dtype))


class _Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = _Three(_attention)
        self.out = nn.Linear(8, 8)
        self.gate, self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False), nn.Linear(16, 8)
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.first(x)))
        y = self.second(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def test_transformers() -> None:
    model = nn.Sequential(_Block(), _Block())
    _check(model, torch.randn(2, 5, 8), merged=10, products=8)
    if not MATMUL_FIXES_SIZES:
        _check(model, torch.randn(2, 5, 8), torch.randn(4, 3, 8), merged=10, products=8)


def test_weights_that_are_made_of_constants_may_be_made_later() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ (self.a * 2)).sin()
            return y * (x @ (self.b.exp() + 1))

    _check(Scaled(), torch.randn(5, 8), merged=2)


def test_a_part_of_a_larger_group() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return q.sin() * k, v

    model = _Three(function)
    x = torch.randn(5, 8)
    recorded = record(model, x)
    program, report = _merge(recorded)
    assert [(row.layers, row.code) for row in report.rows] == [
        (("addmm_2",), "RETURNED"),
        (("addmm", "addmm_1"), "MERGED"),
    ]
    with torch.no_grad():
        wanted = model(x)
    for found, eager in zip(recorded.run(program, x), wanted, strict=True):
        assert found.stride() == eager.stride()
        assert found.untyped_storage().nbytes() == eager.untyped_storage().nbytes()
        torch.testing.assert_close(found, eager)


# --- what stays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "codes"),
    [
        (lambda q, k, v: (q, k, v), ["RETURNED", "RETURNED", "ALONE"]),
        (lambda q, k, v: (q[0], k.t(), v.sin()), ["RETURNED", "RETURNED", "ALONE"]),
        (lambda q, k, v: q.view(-1).sin() + k.view(-1) + v.view(-1), ["VIEW-NEEDS-CONTIGUOUS"] * 2 + ["ALONE"]),
        (
            lambda q, k, v: q.as_strided((2,), (1,)) + k.as_strided((2,), (1,)) + v.mean(),
            ["READS-PLACE"] * 2 + ["ALONE"],
        ),
    ],
)
def test_reasons(function: Callable[..., Any], codes: list[str]) -> None:
    recorded = record(_Three(function), torch.randn(5, 8))
    program, report = _merge(recorded)
    assert program is recorded.program
    assert [row.code for row in report.rows] == codes
    assert report.asked == ()


def test_layers_that_differ() -> None:
    recorded = record(_Three(_total, (True, False, True)), torch.randn(5, 8))
    program, report = _merge(recorded)
    assert [row.code for row in report.rows] == ["UNLIKE", "MERGED"]
    assert _products(program) == 2


def test_other_inputs_are_not_merged() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x[:4]).sin() + self.b(x[4:]).sin()

    recorded = record(Chain(), torch.randn(8, 8))
    program, report = _merge(recorded)
    assert program is recorded.program
    assert report == MergeLinearsReport()
    assert str(report) == "merged 0 linear layers into 0"


def test_only_constants_are_merged() -> None:
    recorded = record(_Three(_total), torch.randn(5, 8))
    missing = next(name for name in recorded.constants if name.startswith("k_bias"))
    program, report = merge_linears(recorded.program, set(recorded.constants) - {missing}, recorded.infer)
    assert [row.code for row in report.rows] == ["WEIGHT-NOT-CONSTANT", "MERGED"]
    assert _products(program) == 2


def test_scaled_products_stay() -> None:
    a, b, bias = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)

    def function(x: Tensor) -> Tensor:
        return torch.addmm(bias, x, a, alpha=2).sin() + torch.addmm(bias, x, b, beta=3).sin()

    assert dovetail.passes.plan_merge_linears(make_fx(function)(torch.randn(4, 8)), torch.randn(4, 8)).rows == ()


# --- on graph modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_graph_modules(pre_dispatch: bool) -> None:
    model = nn.Sequential(_Block(), _Block())
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        graph = make_fx(model, pre_dispatch=pre_dispatch)(x)
        before = graph.code
        after = dovetail.passes.merge_linears(graph, x)
        assert sum(len(row.layers) for row in dovetail.passes.plan_merge_linears(graph, x).merged) == 10
        assert graph.code == before
        assert_rounded_as(after(x), model(x), in_float64(model, x))


def test_a_symbolic_graph_module() -> None:
    model = _Block()
    with torch.no_grad():
        graph = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.randn(3, 4, 8))
        after = dovetail.passes.merge_linears(graph)
        assert after.code.count("slice") == 5
        x = torch.randn(5, 6, 8)
        assert_rounded_as(after(x), model(x), in_float64(model, x))


def _between(x: Tensor, a: Tensor, b: Tensor, write: str) -> Tensor:
    x = x + 0
    p = linear(x, a)
    if write == "x":
        x.mul_(2)
    if write == "p":
        p.relu_()
    return p.sin() + linear(x, b).sin()


@pytest.mark.parametrize(("write", "codes"), [("", ["MERGED"]), ("x", []), ("p", ["WRITTEN", "ALONE"])])
def test_writes(write: str, codes: list[str]) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    x = torch.randn(4, 8)
    graph = make_fx(lambda x: _between(x, a, b, write))(x)
    assert [row.code for row in dovetail.passes.plan_merge_linears(graph, x).rows] == codes
    torch.testing.assert_close(dovetail.passes.merge_linears(graph, x)(x), _between(x, a, b, write))
