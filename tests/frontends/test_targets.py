"""What `dovetail.compile` takes besides functions and modules, and the settings that `torch.compile` hands over."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.errors import BadOptionValue


class Model(nn.Module):
    """A layer, statistics, a counter, a keyword argument and a dictionary of results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, scale: float = 2.0) -> dict[str, Tensor]:
        self.calls.add_(1)
        return {"y": self.norm(self.linear(x)) * scale, "calls": self.calls + 0}


def assert_trains_as(compiled: Any, mine: nn.Module, eager: nn.Module, batches: list[Tensor]) -> None:
    for x in batches:
        results = []
        for call, module in ((compiled, mine), (eager, eager)):
            module.zero_grad()
            out = call(x, scale=3.0)
            out["y"].square().sum().backward()
            results.append([*out.values(), *(p.grad for p in module.parameters()), *module.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_an_exported_program() -> None:
    torch.manual_seed(0)
    eager, x = Model(), torch.randn(3, 4)
    program = torch.export.export(copy.deepcopy(eager), (x,), {"scale": 3.0})
    compiled = dovetail.compile(program)
    assert_trains_as(compiled, compiled, eager, [x, x * 2])
    assert compiled.linear.weight.data_ptr() == program.state_dict["linear.weight"].data_ptr()
    with pytest.raises(AssertionError, match="Guard failed"):
        compiled(torch.randn(5, 4), scale=3.0)


def test_an_exported_program_with_dynamic_sizes() -> None:
    torch.manual_seed(0)
    eager, dynamic = Model(), {"x": {0: torch.export.Dim.DYNAMIC}, "scale": None}
    program = torch.export.export(copy.deepcopy(eager), (torch.randn(3, 4),), {"scale": 3.0}, dynamic_shapes=dynamic)
    compiled = dovetail.compile(program)
    assert_trains_as(compiled, compiled, eager, [torch.randn(count, 4) for count in (3, 7, 20)])
    assert len(compiled.graphs) == 1


def test_an_exported_program_is_analysed() -> None:
    x = torch.randn(3, 4)
    report = dovetail.analyse(torch.export.export(Model(), (x,), {"scale": 3.0}), x, scale=3.0)
    assert "calls" in str(report)


def test_a_graph_module() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(3, 4, requires_grad=True)
    results = [call(x) for call in (dovetail.compile(traced), traced)]
    gradients = [torch.autograd.grad(result.sum(), [x, *traced.parameters()]) for result in results]
    assert torch.equal(*results)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_graph_of_operators_with_a_write_and_a_constant() -> None:
    table = torch.arange(4.0)

    def f(x: Tensor) -> Tensor:
        x.add_(table)
        return torch.nn.functional.softmax(x, -1).t()

    graph = make_fx(f)(torch.ones(3, 4))
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    assert torch.equal(dovetail.compile(graph)(mine), f(theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("target", [3, "model", None, torch.ones(2)])
def test_something_else_is_refused(target: Any) -> None:
    with pytest.raises(BadOptionValue, match="exported program"):
        dovetail.compile(target)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "fast"])
def test_modes_of_torch_compile_are_explained(mode: str) -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"(?s)mode.*inductor.*no mode"):
        torch.compile(lambda x: x + 1, backend="dovetail", mode=mode)(torch.ones(2))


def test_settings_of_torch_compile() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x.exp() * 2, backend="dovetail", fullgraph=True, dynamic=True, mode="default")
    for size in (3, 8):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x.exp() * 2)


def test_reset_compiles_again() -> None:
    made: list[int] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        made.append(len(inputs))
        return dovetail.frontends.backend.dovetail_backend(gm, inputs)

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for _ in range(2):
        torch.compiler.reset()
        compiled(torch.ones(2))
        compiled(torch.ones(2))
    assert made == [1, 1]


def test_a_graph_break_is_explained() -> None:
    torch.compiler.reset()

    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin()

    found = torch._dynamo.explain(f)(torch.ones(2))
    assert found.graph_break_count == 1
    x = torch.ones(2)
    assert torch.equal(torch.compile(f, backend="dovetail")(x), f(x))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="dovetail", fullgraph=True)(x)
