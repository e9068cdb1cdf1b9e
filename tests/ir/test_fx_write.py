"""Any program as a `torch.fx.GraphModule`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.ir.fx_lift import lift
from dovetail.ir.fx_write import to_graph_module
from dovetail.ir.text import emit, plain_call


def test_a_compiled_program_runs_as_a_graph_module() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    x = torch.randn(3, 4)
    program = dovetail.compile(net, (x,)).graphs[0].forward.program
    module = to_graph_module(program)
    tensors = [*net[0].parameters(), *net[1].parameters(), *net[1].buffers(), x]
    with torch.no_grad():
        expected = nn.functional.relu(nn.functional.batch_norm(net[0](x), None, None, *net[1].parameters(), True))
        assert torch.equal(module(*tensors)[0], expected)


def test_primitives_are_read_back() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.t()[0].add_(1)
        torch.manual_seed(3)
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.randn(3, 4)
    program = dovetail.compile(f, (x.clone(),), skip=("dead_code",)).graphs[0].forward.program
    module = to_graph_module(program)
    state = torch.get_rng_state()
    again = lift(module).program
    assert torch.equal(torch.get_rng_state(), state)  # nothing ran
    assert [n.target for n in again.nodes] == [n.target for n in program.nodes]
    assert [str(n.origin) for n in again.nodes] == [str(n.origin) for n in program.nodes]
    assert any(hasattr(node.target, "python") for node in again.nodes)


def test_there_and_back_gives_the_same_text() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.split(2)
        return first @ second.t(), x.topk(2)[0], x.new_full((2,), float("inf"))

    program = lift(make_fx(f)(torch.randn(4, 4))).program
    again = lift(to_graph_module(program)).program
    assert [n.target for n in again.nodes] == [n.target for n in program.nodes]
    lines = [emit(p, plain_call, {}, comments=False).text.count("\n") for p in (program, again)]
    assert lines[0] == lines[1]
    x = torch.randn(4, 4)
    for expected, actual in zip(f(x), to_graph_module(program)(x), strict=True):
        assert torch.equal(expected, actual)


def test_views_share_their_storage_number() -> None:
    program = lift(to_graph_module(lift(make_fx(lambda x: (x.t(), x + 1))(torch.randn(2, 3))).program)).program
    (x,), (view, fresh) = program.inputs, program.outputs
    assert view.tensor.storage == x.tensor.storage != fresh.tensor.storage  # type: ignore[attr-defined]


def test_a_symbolic_program_runs_at_other_sizes() -> None:
    traced = make_fx(lambda x: x.reshape(-1, x.shape[0] * 2), tracing_mode="symbolic")(torch.randn(4, 6))
    program = lift(traced).program
    names = {str(size): number for size, number in zip(program.inputs[0].tensor.shape, (4, 6), strict=True)}
    module = to_graph_module(program, names)
    assert tuple(module.graph.find_nodes(op="placeholder")[0].meta["val"].shape) == (4, 6)
    assert module(torch.ones(3, 10))[0].shape == (5, 6)
    with pytest.raises(KeyError):
        to_graph_module(program)
