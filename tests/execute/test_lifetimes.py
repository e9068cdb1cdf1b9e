"""Storages die at their last use: inputs, results, saved tensors, arriving gradients; nothing waits for gc.

A dispatch mode looks at every operator which of the watched storages are gone. What should be gone follows from the
program: a storage dies after the last node that makes or reads a value on it, unless it is returned.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import dovetail
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.calling import LIKE_OUTPUT
from dovetail.ir.program import Program, values_in
from dovetail.torch_compat.autograd import frees_arriving_gradients
from dovetail.torch_compat.dispatch import DispatchMode

HAS_BOXED_GRADIENTS = frees_arriving_gradients()


@pytest.fixture(autouse=True)
def _without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One operator. gone: for each watched storage, whether it was gone when the operator began. made: its results."""

    operator: object
    gone: list[bool]
    made: list[int] = field(default_factory=list)


class Watch(DispatchMode):
    """Notes at each operator which watched storages are gone; results of operators are watched from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: list[StorageWeakRef] = []
        self.steps: list[Step] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.steps.append(Step(func, self.gone()))
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else (result,)
        self.steps[-1].made = [self.add(item) for item in made if isinstance(item, Tensor)]
        return result

    def add(self, tensor: Tensor) -> int:
        """Watch a tensor's storage; its number."""
        self.refs.append(StorageWeakRef(tensor.untyped_storage()))
        return len(self.refs) - 1

    def gone(self) -> list[bool]:
        """For each watched storage, whether it is gone now."""
        return [ref.expired() for ref in self.refs]

    def of(self, program: Program) -> list[Step]:
        """The steps that are the nodes of a program, whose operators ran in one go."""
        wanted = [node.target for node in program.nodes]
        ran = [step.operator for step in self.steps]
        for first in range(len(ran)):
            if ran[first : first + len(wanted)] == wanted:
                return self.steps[first : first + len(wanted)]
        raise AssertionError(f"{wanted} did not run in one go: {ran}")


def assert_dies_at_last_use(program: Program, watch: Watch, given: dict[str, int]) -> int:
    """Every storage is alive up to its last use, and gone at the next node; how many died is the result.

    given: numbers of the inputs that nobody else holds, by name.
    """
    assert program.nodes
    last = last_uses_of_storages(program)
    watched = {given[value.name]: value.tensor.storage for value in program.inputs if value.name in given}
    foreign = program.input_storages() - set(watched.values())
    steps = watch.of(program)
    deaths = 0
    for index, (node, step) in enumerate(zip(program.nodes, steps, strict=True)):
        for number, storage in watched.items():
            expected = last[storage] < index
            assert step.gone[number] == expected, f"storage {storage} at node {index} of {program.name}: {node}"
        made = zip(step.made, (value.tensor.storage for value in node.results()), strict=True)
        watched |= {number: storage for number, storage in made if storage not in foreign}
    for number, storage in watched.items():
        deaths += watch.refs[number].expired()
        assert watch.refs[number].expired() == (last[storage] < len(steps)), f"storage {storage} after {program.name}"
    return deaths


def last_uses_of_storages(program: Program) -> dict[int, int]:
    """For each storage number the last node that makes or reads a value on it; the number of nodes when returned."""
    last = {value.tensor.storage: -1 for value in program.inputs if value.is_tensor}
    for index, node in enumerate(program.nodes):
        last |= {value.tensor.storage: index for value in (*node.operands(), *node.results()) if value.is_tensor}
    last |= {value.tensor.storage: len(program.nodes) for value in values_in(program.outputs) if value.is_tensor}
    return last


# --- functions --------------------------------------------------------------------------------------------------------


def chain(x: Tensor) -> Tensor:
    return x.sin().exp().neg().cos()


def diamond(x: Tensor) -> Tensor:
    a = x.sin()
    b = a.t().exp()
    c = b @ a
    return (c.t() + b).tanh() * c


def layers(x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.softmax(x @ x.t(), -1) @ x
        x = x.relu()
    return x


def several(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.split(2)
    c = (a * b).exp()
    return c.sin(), a.cos(), c.view(-1)


FUNCTIONS = (chain, diamond, layers, several)


# --- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_forward_programs_free_at_the_last_use(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 4)
    program = dovetail.compile(function, (x,)).graphs[0].forward.program
    compiled = CompiledProgram(program, ExecutorList((AtenExecutor(),)))
    watch = Watch()
    inputs = [x]
    number = watch.add(x)
    del x
    with watch:
        results = compiled(inputs)
    assert results
    assert assert_dies_at_last_use(program, watch, {program.inputs[0].name: number}) > 0


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_call_leaves_only_what_it_returns_and_saves(function: Callable[..., Any], requires_grad: bool) -> None:
    compiled = dovetail.compile(function)
    compiled(torch.randn(4, 4, requires_grad=requires_grad))
    x = torch.randn(4, 4, requires_grad=requires_grad)
    watch = Watch()
    watch.add(x)
    with watch:
        results = compiled(x)
    program = compiled.graphs[0].forward.program
    kept = program.output_storages() | program.input_storages()
    for step, node in zip(watch.of(program), program.nodes, strict=True):
        for number, value in zip(step.made, node.results(), strict=True):
            assert watch.refs[number].expired() == (value.tensor.storage not in kept), value
    del x, results
    assert all(watch.gone())


# --- backward ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Training:
    """A call whose outputs are summed with weights, so that the gradients that arrive come from other operators.

    given: numbers of the saved tensors that are nobody else's, and of the gradients once they arrive, by the names of
    the values in the backward program.
    """

    graph: CompiledGraph
    loss: Tensor
    watch: Watch
    given: dict[str, int]
    x: Tensor

    @property
    def program(self) -> Program:
        """The backward program."""
        assert self.graph.backward_for is not None
        differentiable = self.graph.plan.differentiable
        return self.graph.backward_for(tuple(LIKE_OUTPUT if d else None for d in differentiable)).program.program

    def backward(self, retain_graph: bool = False) -> None:
        """Run it, watched."""
        with self.watch:
            self.loss.backward(retain_graph=retain_graph)


def train(function: Callable[..., Any]) -> Training:
    """A forward, ready for backward; the backward was compiled before."""
    compiled = dovetail.compile(function, executors=("aten",))
    _loss(compiled(torch.randn(4, 4, requires_grad=True))).backward()
    x = torch.randn(4, 4, requires_grad=True)
    outputs = _as_tuple(compiled(x))
    (graph,) = compiled.graphs
    training = Training(graph, _loss(outputs), Watch(), {}, x)
    own = x.untyped_storage().data_ptr()
    for name, tensor in zip(graph.residuals, outputs[0].grad_fn.saved_tensors, strict=True):
        if tensor.untyped_storage().data_ptr() != own:
            training.given[name] = training.watch.add(tensor)
    for place, output in enumerate(outputs):
        output.register_hook(_notes_gradient(training.watch, training.given, f"tangent_{place}"))
    return training


def _notes_gradient(watch: Watch, given: dict[str, int], name: str) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:
        given[name] = watch.add(gradient)

    return hook


def _as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _loss(outputs: Any) -> Tensor:
    total = torch.zeros(())
    for output in _as_tuple(outputs):
        total = total + (output * torch.full_like(output, 2.0)).sum()
    return total


needs_boxed_gradients = pytest.mark.skipif(
    not HAS_BOXED_GRADIENTS, reason="before torch 2.13 autograd holds arriving gradients to the end of a backward"
)


@needs_boxed_gradients
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_saved_tensors_and_arriving_gradients_die_at_their_last_use(function: Callable[..., Any]) -> None:
    training = train(function)
    training.backward()
    program = training.program
    assert {name for name in training.given if name.startswith("tangent")} == {
        value.name for value in program.inputs if value.name.startswith("tangent")
    }
    assert set(training.given) <= {value.name for value in program.inputs}
    assert assert_dies_at_last_use(program, training.watch, training.given) >= len(training.given)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_saved_tensors_stay_while_the_graph_is_retained(function: Callable[..., Any]) -> None:
    training = train(function)
    saved = list(training.given.values())
    training.backward(retain_graph=True)
    assert not any(training.watch.refs[number].expired() for number in saved)
    first, training.x.grad = training.x.grad, None
    training.backward()
    assert torch.equal(training.x.grad, first)  # type: ignore[arg-type]
    assert all(training.watch.refs[number].expired() for number in saved)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_graph_that_is_dropped_frees_what_it_saved(function: Callable[..., Any]) -> None:
    training = train(function)
    training.backward(retain_graph=True)
    watch = training.watch
    del training
    assert all(watch.gone())


def test_an_error_in_backward_frees_what_was_saved() -> None:
    training = train(diamond)
    watch, saved = training.watch, list(training.given.values())

    class Stop(DispatchMode):
        def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.mm.default:
                raise RuntimeError("stop")
            return func(*args, **(kwargs or {}))

    with Stop(), pytest.raises(RuntimeError, match="stop"):
        training.loss.backward()
    assert all(watch.refs[number].expired() for number in saved)


# --- arguments that nobody else holds ---------------------------------------------------------------------------------
# A caller in Python holds the arguments of a call to a callable object (a compiled function, an eager module) until it
# returns, so a temporary in `f(make())` cannot die inside. It dies with the call, unless backward needs it.


def _temporary(watch: Watch, requires_grad: bool = False) -> Tensor:
    tensor = torch.randn(4, 4).requires_grad_(requires_grad)
    watch.add(tensor)
    return tensor


class Chain(nn.Module):
    """`chain` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same sizes."""
        return chain(x)


CALLABLES: dict[str, Callable[[], Callable[..., Any]]] = {
    "eager module": Chain,
    "dovetail.compile": lambda: dovetail.compile(chain),
    "dovetail.compile of a module": lambda: dovetail.compile(Chain()),
    "torch.compile, eager": lambda: torch.compile(chain, backend="eager"),
    "torch.compile, dovetail": lambda: torch.compile(chain, backend="dovetail"),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", CALLABLES)
def test_a_temporary_argument_dies_with_the_call(name: str) -> None:
    call = CALLABLES[name]()
    call(torch.randn(4, 4))
    gc.collect()
    watch = Watch()
    result = call(_temporary(watch))
    assert result.shape == (4, 4)
    assert watch.gone() == [True]


@pytest.mark.usefixtures("alone")
def test_temporary_arguments_live_no_longer_than_in_eager() -> None:
    watch = Watch()
    seen: list[list[bool]] = []

    def look(x: Tensor) -> Tensor:
        seen.append(watch.gone())
        return x.clone()

    def looked_at(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.dovetail_lifetimes.look(chain(x))
        return result

    with torch.library._scoped_library("dovetail_lifetimes", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", look, "CPU")
        library.impl("look", torch.empty_like, "Meta")
        backends = [torch.compile(looked_at, backend=backend) for backend in ("eager", "dovetail")]
        for call in (looked_at, *backends, dovetail.compile(looked_at)):
            call(torch.randn(4, 4))
            watch.refs.clear()
            seen.clear()
            call(_temporary(watch))
            assert seen == [[False]]
            assert watch.gone() == [True]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", CALLABLES)
def test_a_temporary_argument_that_backward_reads_dies_in_backward(name: str) -> None:
    call = CALLABLES[name]()
    call(torch.randn(4, 4) * torch.ones(4, 4, requires_grad=True)).sum().backward()
    gc.collect()
    watch = Watch()
    result = call(torch.ones(4, 4, requires_grad=True) * _temporary(watch))
    loss = result.sum()
    del result
    assert watch.gone() == [False]
    loss.backward()
    assert watch.gone() == [True]


def test_the_first_compilation_of_a_process_keeps_no_argument() -> None:
    """What torch loads then leaves a frame that refers to itself, and with it all callers' variables."""
    code = """
        import gc, torch, dovetail
        from torch.multiprocessing.reductions import StorageWeakRef
        gc.disable()
        x = torch.ones(4)
        with torch.no_grad():
            dovetail.compile(torch.sin)(x)
        watched = StorageWeakRef(x.untyped_storage())
        del x
        assert watched.expired()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
