"""Products and convolutions in bfloat16: what is rewritten, how far results are from eager's, and what is left."""

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
from dovetail.ir.program import Program
from dovetail.ops import prims
from dovetail.passes import narrow as narrow_on_graph_modules
from dovetail.passes.narrow import NarrowReport, narrow
from dovetail.torch_compat.onednn_low_precision import multiplies_bfloat16
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import Recorded, record

pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="this processor has no instructions for bfloat16")

PASS = sys.modules["dovetail.passes.narrow"]  # the package has the function under this name
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small; and each test has the same numbers."""
    monkeypatch.setattr(PASS, "_LARGE_WEIGHT", 1 << 8)
    monkeypatch.setattr(PASS, "_LARGE_CONVOLUTION", 1 << 8)
    torch.manual_seed(0)


def _narrowed(model: nn.Module, *inputs: Tensor, dynamic: bool = False) -> tuple[Recorded, Program, NarrowReport]:
    recorded = record(model.eval(), *inputs, dynamic=dynamic)
    return recorded, *narrow(recorded.program, recorded.constants, recorded.infer)


def _check(model: nn.Module, recorded: Recorded, program: Program, *inputs: Tensor) -> None:
    with torch.no_grad():
        results = model(*inputs)
    expected = results if isinstance(results, tuple) else (results,)
    for one, other in zip(recorded.run(program, *inputs), expected, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert float((one - other).norm() / other.norm()) < 0.02
    given = iter(inputs)
    args = [recorded.tensors[v.name] if v.name in recorded.tensors else next(given) for v in program.inputs]
    assert_described_as_made(program, args)


class Layers(nn.Module):
    """Two linear layers, with something between."""

    def __init__(self, between: Callable[[Tensor], Any] = F.gelu) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)
        self.between = between

    def forward(self, x: Tensor) -> Any:
        return self.second(self.between(self.first(x)))


def test_before_and_after() -> None:
    _, program, report = _narrowed(Layers(), torch.randn(10, 32))
    assert body(program) == [
        "arg_0_bf16 = _to_copy.default(arg_0, dtype=torch.bfloat16)",
        "first_bias_1_bf16 = _to_copy.default(first_bias_1, dtype=torch.bfloat16)",
        "first_weight_0_bf16 = _to_copy.default(first_weight_0, dtype=torch.bfloat16)",
        "first_weight_0_packed = prims.PACK_LINEAR(first_weight_0_bf16, 10)",
        "gelu_bf16 = prims.packed_linear('gelu')(arg_0_bf16, first_weight_0_packed, first_bias_1_bf16)",
        "second_weight_2_bf16 = _to_copy.default(second_weight_2, dtype=torch.bfloat16)",
        "second_weight_2_packed = prims.PACK_LINEAR(second_weight_2_bf16, 10)",
        "mm_bf16 = prims.packed_linear('none')(gelu_bf16, second_weight_2_packed, None)",
        "mm = _to_copy.default(mm_bf16, dtype=torch.float32)",
        "return (mm, None, None, None)",
    ]
    assert report.layers == ("gelu", "mm")
    assert report.casts == 1
    assert set(report.opaque) == {"first_weight_0_packed", "second_weight_2_packed"}
    assert str(report).startswith("2 products and convolutions in bfloat16, of 2 weights, 1 tensors rounded")


@pytest.mark.parametrize(
    ("between", "casts"),
    [
        (F.gelu, 1),
        (lambda y: y.unflatten(-1, (8, 8)).transpose(-1, -2).flatten(-2), 1),  # arranges
        (lambda y: F.relu(y.view(-1, 64)), 1),
        (lambda y: F.layer_norm(y, (64,)), 2),  # computes
        (lambda y: y + y.relu(), 2),
    ],
)
@pytest.mark.parametrize("shape", [(12, 32), (2, 6, 32)])
def test_linear(between: Callable[[Tensor], Any], casts: int, shape: tuple[int, ...]) -> None:
    model, x = Layers(between), torch.randn(shape)
    recorded, program, report = _narrowed(model, x)
    assert (len(report.layers), report.casts) == (2, casts)
    _check(model, recorded, program, x)


def test_a_symbolic_batch() -> None:
    model = Layers()
    recorded, program, _ = _narrowed(model, torch.randn(4, 6, 32), dynamic=True)
    for rows in (4, 2, 9):
        _check(model, recorded, program, torch.randn(rows, 6, 32))


class Images(nn.Module):
    """Convolutions with a residual and a pool between, groups, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.deep, self.head = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = F.relu(x + self.body(x))
        y = self.deep(x)
        return self.head(y.mean((2, 3))), y


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions(dynamic: bool) -> None:
    model = Images()
    recorded, program, report = _narrowed(model, torch.randn(2, 3, 8, 8), dynamic=dynamic)
    assert len(report.layers) == 4
    assert report.casts == 2  # of the images, and of the means
    pools = [node for node in program.nodes if node.target is aten.max_pool2d_with_indices.default]
    assert [node.results()[0].tensor.dtype for node in pools] == [torch.bfloat16]
    for rows in (2, 5) if dynamic else (2,):
        _check(model, recorded, program, torch.randn(rows, 3, 8, 8))


def test_what_choosing_gives_is_what_rounding_after_it_gives() -> None:
    """Operators that are said to commute with rounding do, bit by bit."""
    x = torch.randn(2, 3, 8, 8) * 100
    x[0, 0, 0, :4] = torch.tensor([-0.0, float("inf"), float("-inf"), 1e-42])
    for choose in (torch.relu, lambda t: F.max_pool2d(t, 3, padding=1), lambda t: t.clone(), lambda t: t.mT[..., 1:]):
        found, expected = choose(x.bfloat16()), choose(x).bfloat16()
        assert torch.equal(found, expected)
        assert torch.equal(found.signbit(), expected.signbit())


def test_on_graph_modules() -> None:
    model, x = Layers().eval(), torch.randn(5, 32)
    with torch.no_grad():
        gm = make_fx(model)(x)
        made = narrow_on_graph_modules(gm, x)
        assert float((made(x) - model(x)).norm() / model(x).norm()) < 0.02
    assert passes.plan_narrow(gm, x).changed == 2
    assert prims.packed_linear("gelu") in {node.target for node in made.graph.nodes}
