"""Nodes run where they are needed, in the order that keeps least alive."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.analysis.liveness import simulate_peak
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node
from dovetail.passes.sink import SinkReport, alap_schedule, sink
from tests.passes.programs import Builder, body
from tests.torch_release import BEFORE_2_13

aten = torch.ops.aten


def _order(lines: list[str]) -> list[str]:
    return [line.split(" = ")[0] for line in lines]


def test_draws_keep_their_places_and_reads_stay_before_writes() -> None:
    b = Builder("x")
    (x,) = b.inputs
    early = b.call("early", aten.mul.Tensor, x, 2)
    drawn = b.call("drawn", aten.bernoulli.p, x, 0.5)
    other = b.call("other", aten.rand.default, [4])
    b.nodes.append(Node(aten.copy_.default, (x, drawn)))
    result = b.call("result", aten.add.Tensor, early, other)
    assert _order(body(alap_schedule(b.program(result)))) == [
        "drawn",
        "other",
        "early",
        "copy_.default(x, drawn)",
        "result",
        "return (result,)",
    ]


def test_a_factor_waits_for_the_memory_of_another_one() -> None:
    b = Builder("p", "g", "m")
    p, g, m = b.inputs
    first = b.call("first", aten.mul.Tensor, g, 2)
    second = b.call("second", aten.mul.Tensor, m, 3)
    once = b.call("once", aten.add.Tensor, p, first)
    twice = b.call("twice", aten.add.Tensor, once, second)
    b.nodes.append(Node(aten.copy_.default, (p, twice)))
    program = b.program()
    later, report = sink(program)
    assert _order(body(later))[:4] == ["first", "once", "second", "twice"]
    assert report == SinkReport(2, 16)
    assert sink(later) == (later, SinkReport(0, 0))


def test_the_operand_that_takes_most_comes_first() -> None:
    b = Builder("x", "y")
    x, y = b.inputs
    light = b.call("light", aten.sin.default, x, shape=(400,))
    number = b.call("number", aten.sum.default, y, shape=())
    wide = b.call("wide", aten.cos.default, y, shape=(400,))
    heavy = b.call("heavy", aten.mul.Tensor, wide, number, shape=(400,))
    result = b.call("result", aten.add.Tensor, light, heavy, shape=(400,))
    order = ["number", "wide", "heavy", "light", "result", "return (result,)"]
    assert sorted(_order(body(alap_schedule(b.program(result))))[:2]) == sorted(order[:2])
    assert _order(body(alap_schedule(b.program(result))))[2:] == order[2:]


def test_what_an_input_has_room_for_does_not_wait() -> None:
    b = Builder("p", "g", "q")
    p, g, q = b.inputs
    step = b.call("step", aten.mm.default, g, g)
    moved = b.call("moved", aten.add.Tensor, p, step)
    other = b.call("other", aten.mm.default, q, q)
    b.nodes.append(Node(aten.copy_.default, (p, moved)))
    result = b.call("result", aten.add.Tensor, other, q)
    assert _order(body(alap_schedule(b.program(result))))[:2] == ["step", "moved"]


def test_nothing_moves_where_the_peak_stays() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.sin.default, x)
    c = b.call("c", aten.cos.default, x)
    program = b.program(b.call("sum", aten.add.Tensor, c, a))
    assert sink(program) == (program, SinkReport(0, 0))


def test_what_waits_keeps_no_input_alive_that_would_die() -> None:
    """The gradient of a weight reads a saved value, and is half as large: it does not wait."""
    b = Builder("saved", "g")
    saved, g = b.inputs
    weight = b.call("weight", aten.mm.default, saved, g, shape=(2,))
    wide = b.call("wide", aten.cos.default, g, shape=(8,))
    result = b.call("result", aten.sin.default, wide, shape=(2,))
    program = b.program([weight, result])
    assert _order(body(alap_schedule(program)))[:2] == ["wide", "result"]
    assert _order(body(alap_schedule(program, (0,))))[:2] == ["weight", "wide"]
    assert simulate_peak(program, dying=(0,)).peak_bytes < simulate_peak(alap_schedule(program), dying=(0,)).peak_bytes


class _Layers(nn.Module):
    def __init__(self, widths: tuple[int, ...], activation: nn.Module, has_loss: bool) -> None:
        super().__init__()
        self.has_loss = has_loss
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        *layers, last = self.layers
        for layer in layers:
            x = self.activation(layer(x))
        out: Tensor = last(x)
        return out.square().mean() if self.has_loss else out


@pytest.mark.skipif(BEFORE_2_13, reason="before torch 2.13 autograd holds arriving gradients to the end of a backward")
@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.Tanh(), nn.SiLU(), nn.Softplus()], ids=str)
@pytest.mark.parametrize("has_loss", [True, False], ids=["loss", "outside"])
@pytest.mark.parametrize("widths", [(64, 256, 64), (16, 64, 8, 64, 16), (64, 8, 64), (24, 24, 24, 24)], ids=str)
def test_a_step_takes_no_more_than_eager(widths: tuple[int, ...], activation: nn.Module, has_loss: bool) -> None:
    x = torch.randn(128, widths[0])
    models = [_Layers(widths, activation, has_loss) for _ in range(2)]
    run = dovetail.compile(models[1])
    run(x).mean().backward()  # compile
    peaks = []
    for step, model in ((models[0], models[0]), (run, models[1])):
        model.zero_grad(set_to_none=True)
        peaks.append(measure_peak(lambda step=step: step(x).mean().backward()).peak_bytes)
    assert peaks[1] <= peaks[0]
