"""Weights in panels: what the program becomes, and which layers are left."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.execute.native.panels import multiplies_panels
from dovetail.passes.panels import PanelsReport, panels
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import assert_rounded_as, record
from tests.rounding import in_float64


class Layers(nn.Module):
    """Two layers over one weight, one of another size, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.wide, self.small = nn.Linear(256, 256), nn.Linear(256, 512, bias=False), nn.Linear(512, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.small(self.wide(F.gelu(self.twice(self.twice(x)))))
        return made


def test_before_and_after() -> None:
    model, x = Layers().eval(), torch.randn(2, 5, 256)
    recorded = record(model, x)
    program, report = panels(recorded.program, recorded.constants, recorded.infer)
    first, second = "twice_weight_0_panels", "wide_weight_2_panels"
    assert [line.replace("PACK_PANELS", "pack") for line in body(program) if "prims." in line] == [
        f"{first} = prims.pack(twice_weight_0, None)",
        f"addmm = prims.panel_linear('none')(view, {first}, 256, twice_bias_1)",
        f"gelu = prims.panel_linear('gelu')(view_1, {first}, 256, twice_bias_1)",
        f"{second} = prims.pack(wide_weight_2, None)",
        f"mm = prims.panel_linear('none')(view_4, {second}, 512, None)",
    ]
    names = (first, second)
    assert (report.asked, report.opaque, len(report.linears)) == (names, names, 3)
    assert [reason.split(":")[0] for _, reason in report.left] == ["SMALL"]
    assert str(report) == "2 weights in panels for 3 products, left 1"
    with torch.no_grad():
        assert_rounded_as(recorded.run(program, x), model(x), in_float64(model, x))
    args = [recorded.tensors.get(value.name, x) for value in program.inputs]
    assert_described_as_made(program, args)


def test_a_symbolic_batch() -> None:
    model, x = Layers().eval(), torch.randn(4, 5, 256)
    recorded = record(model, x, dynamic=True)
    program, report = panels(recorded.program, recorded.constants, recorded.infer)
    assert len(report.linears) == 3
    for rows in (2, 9):
        x = torch.randn(rows, 5, 256)
        with torch.no_grad():
            assert_rounded_as(recorded.run(program, x), model(x), in_float64(model, x))


def test_layers_that_are_left() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.randn(1, 256))
            self.matrix = nn.Parameter(torch.randn(256, 512))

        def forward(self, x: Tensor, changing: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            expanded = self.row.expand(512, 256)
            return x @ self.matrix, x @ changing, F.linear(x, expanded), self.matrix + 1

    recorded = record(Other().eval(), torch.randn(3, 256), torch.randn(256, 512))
    program, report = panels(recorded.program, recorded.constants, recorded.infer)
    assert program is recorded.program
    assert isinstance(report, PanelsReport)
    assert not report.asked
    assert {reason.split(":")[0] for _, reason in report.left} == {"SHARED", "WEIGHT-CHANGES", "GROWS"}
    assert len(report.left) == 3


@pytest.mark.parametrize("executors", [("native", "aten"), ("aten",)])
def test_a_weight_that_is_stored_as_it_multiplies(executors: tuple[str, ...]) -> None:
    class InOrder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.bias = nn.Parameter(torch.randn(256, 500)), nn.Parameter(torch.randn(500))

        def forward(self, x: Tensor) -> Tensor:
            once = F.gelu(torch.addmm(self.bias, x.flatten(0, -2), self.matrix))
            return once + x.flatten(0, -2) @ self.matrix

    if "native" in executors and not multiplies_panels():
        pytest.skip("no machine code can be made here")
    model, x = InOrder().eval(), torch.randn(2, 3, 256)
    plain = copy.deepcopy(model)
    recorded = record(model, x)
    _, report = panels(recorded.program, recorded.constants, recorded.infer)
    assert len(report.asked) == 1
    assert len(report.linears) == 2
    frozen = dovetail.freeze(model, (x,), passes="fast", executors=executors, discard_originals=True)
    for rows in (1, 3, 40):
        y = torch.randn(rows, 3, 256)
        torch.testing.assert_close(frozen(y), plain(y), rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_an_embedding_too_is_held_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(600, 256)

        def forward(self, tokens: Tensor) -> Tensor:
            return F.linear(self.tokens(tokens), self.tokens.weight)

    model, tokens = Tied().eval(), torch.randint(600, (2, 16))
    recorded = record(model, tokens)
    program, report = panels(recorded.program, recorded.constants, recorded.infer)
    assert program is recorded.program
    assert [reason.split(":")[0] for _, reason in report.left] == ["SHARED"]
    frozen = dovetail.freeze(model, (tokens,), passes="fast")
    assert frozen.constant_bytes() == 600 * 256 * 4
    torch.testing.assert_close(frozen(tokens), model(tokens), rtol=1e-4, atol=1e-5)
