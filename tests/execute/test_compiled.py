"""Programs as Python functions: errors, lifetimes, profiler ranges, wrappers."""

from __future__ import annotations

import copy
import enum
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

import dovetail
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.execute.wrapper import wrapper_source
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node
from dovetail.ir.text import Names, plain_call
from tests.passes.programs import Builder

aten = torch.ops.aten
EXECUTORS = ExecutorList((AtenExecutor(),))


# --- errors ---------------------------------------------------------------------------------------------


def _pick(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    return y[index]


_PICK_LINE = _pick.__code__.co_firstlineno + 2


@pytest.mark.parametrize("profiled", [False, True])
def test_an_error_names_the_users_line(profiled: bool) -> None:
    compiled = dovetail.compile(_pick)
    assert compiled(torch.ones(3), torch.tensor([2])).item() == 2
    with pytest.raises(IndexError, match="out of bounds") as caught:
        _call(lambda: compiled(torch.ones(3), torch.tensor([7])), profiled)
    (note,) = caught.value.__notes__
    assert note.startswith("dovetail: while running aten.index.Tensor of _pick_forward, from ")
    assert note.endswith(f"{Path(__file__).name}:{_PICK_LINE} in _pick")


def _call(function: Callable[[], Any], profiled: bool) -> Any:
    if not profiled:
        return function()
    with profile():
        return function()


def test_an_error_in_backward_names_the_forward_line() -> None:
    with torch.library._scoped_library("dovetail_execute", "FRAGMENT") as library:
        library.define("picky(Tensor x) -> Tensor")
        library.impl("picky", torch.empty_like, "Meta")

        def picky(x: Tensor) -> Tensor:
            if x.sum() > 10:
                raise ValueError("too large")
            return x.clone()

        library.impl("picky", picky, "CPU")

        class Picky(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return torch.ops.dovetail_execute.picky(grads[0])

        compiled = dovetail.compile(lambda x: Picky.apply(x) * 3)
        x = torch.ones(2, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 3.0))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="too large") as caught:
            (compiled(x) * 100).sum().backward()
    assert any("picky" in note and Path(__file__).name in note for note in caught.value.__notes__)


# --- lifetimes ------------------------------------------------------------------------------------------


@pytest.fixture
def looks() -> Iterator[list[list[str]]]:
    """What is alive at each application of `dovetail_look::look`: names of the tensors that `watch` was given."""
    seen: list[list[str]] = []
    with torch.library._scoped_library("dovetail_look", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")

        def look(x: Tensor) -> Tensor:
            seen.append(sorted(name for name, ref in _WATCHED.items() if ref() is not None))
            result = x.clone()
            _WATCHED[f"look_{len(seen)}"] = weakref.ref(result)
            return result

        library.impl("look", look, "CPU")
        yield seen
    _WATCHED.clear()


_WATCHED: dict[str, weakref.ref[Tensor]] = {}


def _watched(name: str) -> Tensor:
    tensor = torch.ones(4)
    _WATCHED[name] = weakref.ref(tensor)
    return tensor


@pytest.mark.parametrize("profiled", [False, True])
def test_values_die_at_their_last_use(looks: list[list[str]], profiled: bool) -> None:
    look = torch.ops.dovetail_look.look.default
    b = Builder("x", "unread", "w")
    x, _, w = b.inputs
    first = b.call("first", look, x)
    second = b.call("second", look, first)
    third = b.call("third", aten.mul.Tensor, second, w)
    fourth = b.call("fourth", look, third)
    compiled = CompiledProgram(b.program(fourth), EXECUTORS)
    inputs = [_watched("x"), _watched("unread"), _watched("w")]
    (result,) = _call(lambda: compiled(inputs), profiled)
    assert inputs == []
    assert torch.equal(result, torch.ones(4))
    # While an operator runs, its operands are alive.
    assert looks == [["w", "x"], ["look_1", "w"], []]
    assert [name for name, ref in _WATCHED.items() if ref() is not None] == ["look_3"]


def test_the_peak_of_an_elementwise_chain_is_one_block() -> None:
    compiled = dovetail.compile(lambda x: x.neg().exp().sin().neg())
    x = torch.ones(256)
    compiled(x)
    report = measure_peak(compiled, x)
    assert (report.peak_bytes, report.end_bytes) == (1024, 1024)


def test_residuals_die_one_by_one_in_backward() -> None:
    compiled = dovetail.compile(lambda x: x.sin().sin().sin().sin())
    x = torch.ones(256, requires_grad=True)
    peaks = []
    for call in (lambda t: t.sin().sin().sin().sin(), compiled):
        call(x).sum().backward()
        loss = call(x).sum()
        peaks.append(measure_peak(lambda loss=loss: torch.autograd.grad(loss, x)).peak_bytes)
        del loss
    assert peaks[1] <= peaks[0]


# --- profiler -------------------------------------------------------------------------------------------


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.first(x) + 1)


def test_ranges_by_module_appear_while_profiling() -> None:
    net = _Net()
    compiled = dovetail.compile(net, executors=("aten",))
    x = torch.randn(2, 3)
    expected = compiled(x).detach()
    with profile() as profiler:
        result = compiled(x)
        result.sum().backward()
    assert torch.equal(result, expected)
    names = {event.name for event in profiler.function_events}
    assert {"first", "rest.0", "rest.1", "_Net_forward"} <= names
    assert any(name.startswith("_Net") and name.endswith("_backward") for name in names)
    (tanh,) = [event for event in profiler.function_events if event.name in ("aten::tanh", "aten::tanh_")]
    assert tanh.cpu_parent is not None
    assert tanh.cpu_parent.name == "rest.0"


# --- executors ------------------------------------------------------------------------------------------


class _Sines:
    """Runs every sine in float64."""

    name = "sines"

    def claim(self, node: Node) -> bool:
        return node.target is aten.sin.default

    def call(self, names: Names, node: Node) -> str:
        return f"{names.constant(_double_sine, 'double_sine')}({names.arguments(node)})"


def _double_sine(x: Tensor) -> Tensor:
    return x.double().sin().float()


def test_the_first_executor_that_claims_a_node_runs_it() -> None:
    b = Builder("x")
    sine = b.call("a", aten.sin.default, b.inputs[0])
    program = b.program(b.call("c", aten.cos.default, sine))
    executors = ExecutorList((_Sines(), AtenExecutor()))
    assert [executors.owner(node).name for node in program.nodes] == ["sines", "aten"]
    compiled = CompiledProgram(program, executors)
    assert "a = double_sine(x)" in compiled.source
    x = torch.randn(4)
    assert torch.equal(compiled([x.clone()])[0], _double_sine(x).cos())


def test_the_source_that_runs_is_found_by_tracebacks() -> None:
    b = Builder("x")
    program = b.program(b.call("a", aten.view.default, b.inputs[0], [5]))
    compiled = CompiledProgram(program, EXECUTORS)
    try:
        compiled([torch.ones(4)])
    except RuntimeError:
        trace = sys.exc_info()[2]
    while trace.tb_next is not None:  # type: ignore[union-attr]
        trace = trace.tb_next  # type: ignore[union-attr]
    assert trace.tb_frame.f_code.co_filename.startswith("<dovetail small ")  # type: ignore[union-attr]
    assert plain_call(Names(), program.nodes[0]) == "torch.ops.aten.view.default(x, [5])"


# --- wrapper --------------------------------------------------------------------------------------------


def _wrapper(function: Callable[..., Any], *inputs: Any, **options: Any) -> str:
    compiled = dovetail.compile(function, inputs, **options)
    (graph,) = compiled.graphs
    return wrapper_source(graph.plan, graph.forward.program)[0]


def test_wrapper_of_a_plain_function() -> None:
    assert _wrapper(lambda x: x * 2, torch.ones(2)) == dedent("""\
        def call(run, args):
            outs = run(args)
            return (outs[0], )
        """)


def test_an_input_is_not_taken_for_a_constant_of_its_name() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("_cpu", torch.ones(2))

        def forward(self, x: Tensor) -> tuple[Any, ...]:
            return (
                x + self._cpu,
                self._cpu,
                torch.device("cpu:0"),
            )  # the buffer is called _cpu_0, as the device would be

    model = Model()
    _, buffer, device = dovetail.compile(model)(torch.ones(2))
    assert buffer is model._cpu
    assert device == torch.device("cpu:0")


def test_wrapper_with_writes_views_and_constants() -> None:
    def f(x: Tensor, y: Tensor, n: int) -> tuple[Any, ...]:
        view = x.view(-1)
        x.mul_(2)
        y.data.add_(1)
        z = y * 2
        return view, x, z[0], z, n, view, None

    x = torch.randn(2, 3, requires_grad=True) * 1
    assert _wrapper(f, x, torch.randn(2, 3), 5) == dedent("""\
        def call(run, args):
            arg_0 = args[0]
            outs = run(args)
            withdraw_announcement(arg_0)
            followed(arg_0, outs[1]).copy_(outs[1])
            result_0 = torch.ops.aten.view.default(arg_0, [-1])
            return (result_0, arg_0, torch.ops.aten.select.int(outs[0], 0, 0), outs[0], 5, result_0, None, )
        """)


class Color(enum.StrEnum):
    RED = "red"


class _Level(enum.IntEnum):
    LOW = 1


class _Word(str):
    pass


def test_constants_keep_their_classes() -> None:
    for constant in (Color.RED, _Level.LOW, _Word("word")):
        _, found = dovetail.compile(lambda x, constant=constant: (x * 2, constant))(torch.ones(2))
        assert found is constant


def test_wrapper_of_a_step() -> None:
    net = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> tuple[Any, ...]:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        net.weight.requires_grad_(False)
        return loss, f"{loss.item():.1f}", x, loss, Color.RED

    compiled = dovetail.compile_step(step)
    for _ in range(2):
        net.weight.requires_grad_()
        compiled(torch.ones(1, 2))
    plan, program = compiled.compiled.plan, compiled.compiled.program
    assert wrapper_source(plan, program, ["weight", "x", "loss"])[0] == dedent("""\
        def call(run, args):
            weight = args[0]
            x = args[1]
            weight.grad = None
            outs = run(args)
            result_left = (outs[2], )
            weight.grad = outs[1]
            result_0 = as_seen(outs[0], _look)
            result_all = (result_0, _text.made(result_left), x, result_0, _color, )
            weight.requires_grad_(False)
            return (*result_all, *result_left)
        """)


def test_wrapper_with_sizes() -> None:
    text = _wrapper(lambda x: x.view(x.size(0) * 2, -1), torch.randn(3, 4), dynamic=True)
    head, keep, run, size, result = text.splitlines()
    symbol = size.split()[0]
    assert (head, keep, run) == ("def call(run, args):", "    arg_0 = args[0]", "    outs = run(args)")
    assert size == f"    {symbol} = arg_0.size(0)"
    assert result == f"    return (torch.ops.aten.view.default(arg_0, [2 * {symbol}, -1]), )"


def test_wrapper_with_leaves_and_detached_views() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.t(), (x * 1).detach().requires_grad_(), x.detach()

    assert _wrapper(f, torch.randn(3, 4, requires_grad=True)) == dedent("""\
        def call(run, args):
            arg_0 = args[0]
            outs = run(args)
            return (torch.ops.aten.t.default(arg_0), outs[0].detach().requires_grad_(), arg_0.detach(), )
        """)


# --- copies ---------------------------------------------------------------------------------------------


def test_a_deep_copy_of_a_graph_is_the_graph() -> None:
    compiled = dovetail.compile(lambda x: x * 2, (torch.ones(2),))
    (graph,) = compiled.graphs
    assert copy.deepcopy(graph) is graph
    assert copy.deepcopy({"graph": [graph]})["graph"][0] is graph


def test_a_deep_copy_of_a_compiled_module_has_parameters_of_its_own() -> None:
    net = nn.Linear(2, 1)
    compiled = dovetail.compile(net)
    x = torch.ones(1, 2)
    compiled(x)
    twin = copy.deepcopy(compiled)
    twin(x).sum().backward()
    assert net.weight.grad is None
    assert torch.equal(twin.weight.grad, x)
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.zero_()
    assert twin(x).item() == 0
    assert torch.equal(compiled(x), net(x))
