"""Programs from and to `torch.fx.GraphModule`."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.errors import InvalidGraphModule
from dovetail.ir.fx_bridge import from_graph_module, to_graph_module
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


def test_there_and_back_gives_the_same_text() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.split(2)
        return first @ second.t(), x.topk(2)[0], x.new_full((2,), float("inf"))

    module = make_fx(f)(torch.randn(4, 4))
    program = from_graph_module(module)
    again = from_graph_module(to_graph_module(program))
    assert [n.target for n in again.nodes] == [n.target for n in program.nodes]
    lines = [emit(p, plain_call, {}, comments=False).text.count("\n") for p in (program, again)]
    assert lines[0] == lines[1]
    x = torch.randn(4, 4)
    for expected, actual in zip(f(x), to_graph_module(program)(x), strict=True):
        assert torch.equal(expected, actual)


def test_views_share_their_storage_number() -> None:
    program = from_graph_module(make_fx(lambda x: (x.t(), x + 1))(torch.randn(2, 3)))
    (x,), (view, fresh) = program.inputs, program.outputs
    assert view.tensor.storage == x.tensor.storage != fresh.tensor.storage  # type: ignore[attr-defined]


def test_a_graph_without_descriptions_is_refused() -> None:
    module = fx.symbolic_trace(lambda x: torch.add(x, 1))
    with pytest.raises(InvalidGraphModule, match="missing"):
        from_graph_module(module)


def test_a_graph_with_method_calls_is_refused() -> None:
    module = fx.symbolic_trace(lambda x: x.sin())
    next(iter(module.graph.nodes)).meta["val"] = torch.ones(1)
    with pytest.raises(InvalidGraphModule, match="call_method"):
        from_graph_module(module)
