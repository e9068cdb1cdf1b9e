"""Weights in the order in which BLAS reads them: what is rewritten, that results are as exact, and what is left."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail import passes
from dovetail.ops import prims
from dovetail.passes import transpose_weights as transpose_on_graph_modules
from dovetail.passes.prepack import prepack
from dovetail.passes.transpose_weights import transpose_weights
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import assert_rounded_as, record
from tests.rounding import in_float64


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test has the same weights and inputs, whatever ran before."""
    torch.manual_seed(0)


class Layers(nn.Module):
    """Linear layers with and without biases and activations, around more dimensions."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 24, bias=bias), nn.Linear(24, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) * 2


def test_before_and_after() -> None:
    recorded = record(Layers().eval(), torch.randn(5, 16))
    program, report = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    assert body(program)[:3] == [
        "t = t.default(first_weight_0)",
        "first_weight_0_transposed = clone.default(t, memory_format=torch.contiguous_format)",
        "addmm = addmm.default(first_bias_1, arg_0, first_weight_0_transposed)",
    ]
    assert report.asked == ("first_weight_0_transposed", "second_weight_2_transposed")
    assert str(report) == "2 weights transposed for 2 products, left 0"


@pytest.mark.parametrize("shape", [(12, 16), (1, 16), (2, 6, 16), (2, 3, 4, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_results_are_as_exact_as_eagers(shape: tuple[int, ...], bias: bool) -> None:
    model, x = Layers(bias=bias).eval(), torch.randn(shape)
    recorded = record(model, x)
    program, report = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    assert len(report.products) == 2
    with torch.no_grad():
        assert_rounded_as(recorded.run(program, x), model(x), in_float64(model, x))
    assert_described_as_made(program, [recorded.tensors.get(value.name, x) for value in program.inputs])


def test_a_symbolic_batch() -> None:
    model = Layers().eval()
    recorded = record(model, torch.randn(4, 6, 16), dynamic=True)
    program, _ = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    for rows in (4, 2, 9):
        x = torch.randn(rows, 6, 16)
        with torch.no_grad():
            assert_rounded_as(recorded.run(program, x), model(x), in_float64(model, x))


class Left(nn.Module):
    """Products that stay: tied to an embedding, stored in order, followed by what oneDNN applies, of no constant."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight
        self.turned = nn.Parameter(torch.randn(16, 16))
        self.wide = nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.table(tokens)
        return self.head(x), x @ self.turned, F.gelu(self.wide(x)), x @ x.t()


def test_what_stays_says_why() -> None:
    recorded = record(Left().eval(), torch.arange(6))
    program, report = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    assert program is recorded.program
    reasons = sorted(reason.split(":")[0] for _, reason in report.left)
    assert reasons == ["IN-ORDER", "LARGE", "SHARED", "WEIGHT-CHANGES"]


class Shared(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


def test_a_weight_of_two_calls_is_transposed_once() -> None:
    recorded = record(Shared().eval(), torch.randn(3, 16))
    _, report = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    assert len(report.products) == 2
    frozen = dovetail.freeze(Shared().eval(), (torch.randn(3, 16),), passes=["transpose_weights"])
    assert frozen.constant_bytes() == (16 * 16 + 16) * 4


def test_what_is_in_order_is_not_packed() -> None:
    model, x = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 1024), nn.GELU()).eval(), torch.randn(64, 512)
    recorded = record(model, x)
    program, _ = transpose_weights(recorded.program, recorded.constants, recorded.infer)
    program, report = prepack(program, recorded.constants, recorded.infer)
    targets = [node.target for node in program.nodes]
    assert targets.count(torch.ops.aten.addmm.default) == 1
    if report.linears:  # with oneDNN
        assert targets.count(prims.packed_linear("gelu")) == 1
        assert [reason.split(":")[0] for _, reason in report.left] == ["IN-ORDER"]


def test_frozen_saved_swapped_and_discarded(tmp_path: Path) -> None:
    model, other, x = Layers().eval(), Layers().eval(), torch.randn(3, 16)
    size_bytes = sum(weight.numel() * 4 for weight in model.parameters())
    frozen = dovetail.freeze(copy.deepcopy(model), (x,), passes="fast", discard_originals=True)
    assert frozen.constant_bytes() == size_bytes
    frozen.save(tmp_path / "model.dovetail")
    loaded: Any = dovetail.load(tmp_path / "model.dovetail")
    for rows in (1, 3, 8):
        x = torch.randn(rows, 16)
        with torch.no_grad():
            assert_rounded_as(frozen(x), model(x), in_float64(model, x))
        assert torch.equal(loaded(x), frozen(x))
    loaded.swap_weights(other.state_dict())
    assert torch.equal(loaded(x), dovetail.freeze(other, (x,), passes="fast")(x))


def test_on_graph_modules() -> None:
    model, x = Layers().eval(), torch.randn(5, 16)
    with torch.no_grad():
        gm = make_fx(model)(x)
        made = transpose_on_graph_modules(gm, x)
        assert_rounded_as(made(x), model(x), in_float64(model, x))
    assert len(passes.plan_transpose_weights(gm, x).products) == 2
