"""What was copied into an input is read there, where nothing writes it, or the copied values, again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node, Value
from dovetail.passes.written_inputs import read_written_inputs
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def _copied(b: Builder, target: Value, **changes: object) -> Value:
    made = b.call("made", aten.mul.Tensor, b.inputs[0], 2, **changes)
    b.nodes.append(Node(aten.copy_.default, (target, made)))
    return made


def test_later_reads_are_of_the_input() -> None:
    b = Builder("x", "buffer")
    made = _copied(b, b.inputs[1])
    first = b.call("first", aten.add.Tensor, made, 1)
    result = b.call("result", aten.mul.Tensor, first, made)
    assert body(read_written_inputs(b.program(result))) == [
        "made = mul.Tensor(x, 2)",
        "copy_.default(buffer, made)",
        "first = add.Tensor(buffer, 1)",
        "result = mul.Tensor(first, buffer)",
        "return (result,)",
    ]


@pytest.mark.parametrize(
    "why", ["the input is written again", "what was copied is written", "it lies otherwise", "given back"]
)
def test_reads_that_stay(why: str) -> None:
    b = Builder("x", "buffer")
    buffer = b.inputs[1]
    made = _copied(b, buffer, **({"stride": (2,)} if why == "it lies otherwise" else {}))
    if why == "the input is written again":
        b.nodes.append(Node(aten.fill_.Scalar, (buffer, 0)))
    elif why == "what was copied is written":
        b.nodes.append(Node(aten.fill_.Scalar, (made, 0)))
    result = b.call("result", aten.add.Tensor, made, 1)
    program = b.program(*((result, made) if why == "given back" else (result,)))
    assert read_written_inputs(program) is program


@pytest.mark.parametrize("reader", ["a view", "by place", "a view before"])
def test_views_and_what_reads_by_place_keep_the_new_contents(reader: str) -> None:
    b = Builder("x", "buffer")
    made = b.call("made", aten.mul.Tensor, b.inputs[0], 2)
    copied = Node(aten.copy_.default, (b.inputs[1], made))
    if reader == "a view before":
        shown = b.call("shown", aten.alias.default, made, view_of=made)
        b.nodes.append(copied)
    elif reader == "a view":
        b.nodes.append(copied)
        shown = b.call("shown", aten.alias.default, made, view_of=made)
    else:
        b.nodes.append(copied)
        shown = b.call("shown", aten.as_strided_copy.default, made, [2], [1], 0)
    program = b.program(b.call("result", aten.add.Tensor, shown, made))
    assert read_written_inputs(program) is program


def _training(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 8))
    return net, torch.optim.AdamW(net.parameters())


def test_statistics_of_a_batch_norm_are_not_kept_beside_the_buffers() -> None:
    """A check of the labels comes before the first write, so that the new statistics are copied."""
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 8
    outcomes = []
    for wrap in (lambda step: step, dovetail.compile_step):
        net, optimizer = _training(256)

        def step(x: Tensor, y: Tensor, net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = wrap(step)  # type: ignore[no-untyped-call]
        reports = [measure_peak(called, *inputs) for _ in range(4)]
        outcomes.append((reports[-1].peak_bytes, [report.result for report in reports], net.state_dict()))
    (eager, losses, state), (ours, ours_losses, ours_state) = outcomes
    assert ours <= eager
    assert all(map(torch.equal, losses, ours_losses))
    assert all(torch.equal(value, ours_state[name]) for name, value in state.items())
