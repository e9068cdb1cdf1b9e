"""What analysis denies is seen when it happens; and it does not happen in random programs and in models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Origin, Program, Stage, Value
from dovetail.ir.signature import InputMutation, SharedBytes, Signature, UserInput, WriteKind
from dovetail.ir.sizes import symbol
from dovetail.testing.real_memory import Tenant, intruder, occupied, share_a_byte, snapshots
from dovetail.testing.sanitizer import AliasSanitizer, AliasViolation
from tests.harness.agreement import check_program
from tests.harness.aliasing import alias_program
from tests.harness.programs import random_program
from tests.models.zoo import ZOO, Entry, loss_of
from tests.passes.programs import Builder
from tests.rotation import rotated

aten = torch.ops.aten
BLOCK = 20
BLOCKS = 3
LARGE = 10_000_000


def run(program: Program, *inputs: Any, bytes: str = "all") -> tuple[Any, ...]:
    """Run a program under the sanitizer."""
    compiled = CompiledProgram(program, ExecutorList((AtenExecutor(),)))
    with AliasSanitizer(bytes), torch.no_grad():
        return compiled(list(inputs))


def refused(program: Program, *inputs: Any, match: str, bytes: str = "all") -> AliasViolation:
    """The violation that a run raises."""
    with pytest.raises(AliasViolation, match=match) as caught:
        run(program, *inputs, bytes=bytes)
    return caught.value


def moved(value: Value, **changes: Any) -> Value:
    """The value, described differently."""
    return Value(value.name, replace(value.tensor, **changes))


def with_description(program: Program, name: str, **changes: Any) -> Program:
    """The program with another description of one value, everywhere."""
    known = {v: v for v in (*program.inputs, *(v for n in program.nodes for v in n.results()))}
    known |= {v: moved(v, **changes) for v in known if v.name == name}
    nodes = tuple(
        replace(n.with_operands(known.__getitem__), outputs=tuple(v and known[v] for v in n.outputs))
        for n in program.nodes
    )
    outputs = tuple(known[v] if isinstance(v, Value) else v for v in program.outputs)
    return replace(program, inputs=tuple(known[v] for v in program.inputs), nodes=nodes, outputs=outputs)


# --- honest programs --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bytes", ["none", "operands", "all"])
def test_a_training_step_passes_and_gives_the_same_bits(bytes: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Dropout())
    compiled = dovetail.compile(net)
    x = torch.randn(5, 4)
    compiled(x)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = []
    for checked in (False, True):
        torch.manual_seed(3)
        net.load_state_dict(state)
        net.zero_grad()
        sanitizer = AliasSanitizer(bytes)
        if checked:
            with sanitizer:
                compiled(x).sum().backward()
            assert (sanitizer.programs, sanitizer.calls) == (2, 1)
            programs = [compiled.graphs[0].forward.program, *_backwards(compiled.graphs[0])]
            assert sanitizer.nodes == sum(len(program.nodes) for program in programs)
        else:
            compiled(x).sum().backward()
        found.append([p.grad for p in net.parameters()] + list(net.state_dict().values()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def _backwards(graph: CompiledGraph) -> list[Program]:
    assert graph.backward_for is not None
    return [graph.backward_for(("like output",)).program.program]


def test_leaving_restores_and_entering_again_works() -> None:
    before = CompiledProgram.__call__, CompiledGraph.__call__
    compiled = dovetail.compile(lambda x: x * 2)
    sanitizer = AliasSanitizer()
    for _ in range(2):
        with sanitizer:
            compiled(torch.ones(2))
    assert (sanitizer.calls, sanitizer.programs, sanitizer.nodes) == (2, 2, 2)
    with pytest.raises(ZeroDivisionError), sanitizer:
        raise ZeroDivisionError
    assert (CompiledProgram.__call__, CompiledGraph.__call__) == before
    with pytest.raises(ValueError, match="one of none, operands, all"):
        AliasSanitizer("some")


def test_sizes_that_are_symbols_are_checked() -> None:
    b = Builder()
    x = b.value("x", shape=(symbol("n"), 2))
    b.inputs.append(x)
    program = b.program(b.call("y", aten.neg.default, x, shape=(symbol("n"), 2)))
    run(program, torch.ones(3, 2))
    wrong = with_description(program, "y", shape=(symbol("n"), 3))
    refused(wrong, torch.ones(3, 2), match=r"y has sizes \(3, 3\); but it has \(3, 2\)")
    run(with_description(program, "y", shape=(symbol("unbound"), 2)), torch.ones(3, 2))


def test_inputs_that_nobody_writes_may_overlap() -> None:
    compiled = dovetail.compile(lambda x, y: x + y)
    base = torch.ones(6)
    with AliasSanitizer("all"):
        compiled(base[:4], base[2:])


def test_an_error_of_an_operator_names_the_users_line() -> None:
    b = Builder("x")
    node = Node(aten.view.default, (b.inputs[0], [3]), outputs=(b.value("y"),), origin=Origin("user.py", 7))
    b.nodes.append(node)
    with pytest.raises(RuntimeError) as caught:
        run(b.program(None), torch.ones(4))
    assert caught.value.__notes__ == ["dovetail: while running aten.view.default of small, from user.py:7"]


# --- wrong descriptions -----------------------------------------------------------------------------------------------


def _view_and_sum() -> Program:
    b = Builder("x")
    y = b.call("y", aten.mul.Tensor, b.inputs[0], 2)
    view = b.call("v", aten.t.default, y, view_of=y)
    return b.program(b.call("z", aten.neg.default, view), y)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("v", {"storage": 77}, "v shares no memory with y; but they share bytes"),
    ("y", {"storage": 0}, "y is a view over the storage of x; but it lies elsewhere"),
    ("y", {"stride": (2,)}, r"y has strides \(2,\); but it has \(1,\)"),
    ("y", {"shape": (3,)}, r"y has sizes \(3,\); but it has \(4,\)"),
    ("y", {"shape": (2, 2), "stride": (2, 1)}, r"y has sizes \(2, 2\); but it has \(4,\)"),
    ("y", {"dtype": torch.float64}, "y is torch.float64 on cpu; but it is torch.float32 on cpu"),
    ("y", {"offset": 1}, "y begins at element 1 of its storage; but at 0"),
    ("v", {"offset": 1}, "v is a view over the storage of y; but it lies elsewhere"),
    ("x", {"shape": (5,)}, r"x has sizes \(5,\); but it has \(4,\)"),
]


@pytest.mark.parametrize(("name", "changes", "match"), WRONG, ids=[f"{n}-{next(iter(c))}" for n, c, _ in WRONG])
def test_a_wrong_description_is_seen(name: str, changes: dict[str, Any], match: str) -> None:
    program = _view_and_sum()
    run(program, torch.ones(4))
    refused(with_description(program, name, **changes), torch.ones(4), match=match, bytes="none")


def test_a_violation_says_where() -> None:
    program = with_description(_view_and_sum(), "v", storage=77)
    error = refused(program, torch.ones(4), match="(?s)they share bytes.*program   small.*node")
    assert (error.program, error.node) == ("small", "v = torch.ops.aten.t.default(y)")


def test_the_number_and_kind_of_results_is_seen() -> None:
    b = Builder("x")
    parts = [b.value("p", 0, (2,)), b.value("q", 0, (2,), offset=2)]
    b.nodes.append(Node(aten.split.Tensor, (b.inputs[0], 2), outputs=tuple(parts), unpack=True))
    run(b.program(*parts), torch.ones(4))
    nodes = (replace(b.nodes[0], outputs=(parts[0], None)),)
    refused(replace(b.program(parts[0]), nodes=nodes), torch.ones(4), match="no tensor among the results")
    nodes = (replace(b.nodes[0], outputs=(parts[0],)),)
    refused(replace(b.program(parts[0]), nodes=nodes), torch.ones(4), match="there are 1 results; but there are 2")


# --- operators that lie -----------------------------------------------------------------------------------------------


_KEPT: list[Tensor] = []


def _keep(x: Tensor) -> Tensor:
    _KEPT.append(x.clone())
    return _KEPT[-1]


LIARS: dict[str, Callable[..., Any]] = {
    "honest": lambda x: x.clone(),
    "writes": lambda x: x.add_(1).clone(),
    "writes_hidden": lambda x: x.data.add_(1).clone(),
    "gives_back": lambda x: x,
    "gives_view": lambda x: x.view(-1),
    "is_strided": lambda x: x.new_empty(2 * x.numel())[::2].copy_(x),
    "is_offset": lambda x: x.new_empty(1 + x.numel())[1:].copy_(x),
    "keeps": _keep,
    "writes_what_it_kept": lambda x: _KEPT[0].data.add_(1).clone(),
}


@pytest.fixture(autouse=True)
def _liars() -> Iterator[None]:
    """Operators whose schemas say: the result is fresh, nothing is written."""
    with torch.library._scoped_library("dovetail_liar", "FRAGMENT") as library:
        for name, function in LIARS.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, function, "CPU")
            library.impl(name, torch.empty_like, "Meta")
        yield
    _KEPT.clear()


CAUGHT: list[tuple[str, str, str]] = [
    ("writes", "none", "does not write arg_0; but its version counter moved"),
    ("writes_hidden", "operands", "does not write arg_0; but 8 bytes changed"),
    ("gives_back", "none", "shares no memory with arg_0; but they share bytes"),
    ("gives_view", "none", "shares no memory with arg_0; but they share bytes"),
    ("is_strided", "none", "has strides"),
    ("is_offset", "none", "begins at element 0 of its storage; but at 1"),
]


@pytest.mark.parametrize(("name", "bytes", "match"), CAUGHT)
def test_an_operator_whose_schema_lies_is_caught(name: str, bytes: str, match: str) -> None:
    operator = getattr(torch.ops.dovetail_liar, name).default
    compiled = dovetail.compile(lambda x: operator(x) * 2)
    compiled(torch.ones(4))
    with AliasSanitizer(bytes), pytest.raises(AliasViolation, match=match) as caught:
        compiled(torch.ones(4))
    assert name in caught.value.node
    assert "test_sanitizer.py" in caught.value.origin


def test_an_honest_operator_passes() -> None:
    compiled = dovetail.compile(lambda x: torch.ops.dovetail_liar.honest(x) * 2)
    with AliasSanitizer("all"):
        assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))


def test_a_lie_in_backward_is_caught() -> None:
    class Lying(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return torch.ops.dovetail_liar.gives_back(grads[0])

    def lying(x: Tensor) -> Tensor:
        result: Tensor = Lying.apply(x)
        return result

    compiled = dovetail.compile(lying)
    x = torch.ones(4, requires_grad=True)
    with AliasSanitizer("none"), pytest.raises(AliasViolation, match="shares no memory with tangent_0"):
        compiled(x).backward(torch.ones(4))


def test_memory_of_a_value_that_is_not_an_operand_is_watched() -> None:
    liar = torch.ops.dovetail_liar
    b = Builder("x")
    kept = b.call("kept", liar.keeps.default, b.inputs[0])
    other = b.call("other", liar.writes_what_it_kept.default, b.inputs[0])
    program = b.program(kept, other)
    run(program, torch.ones(4), bytes="operands")
    _KEPT.clear()
    refused(program, torch.ones(4), match="does not write kept; but 8 bytes changed")


def test_a_storage_that_is_held_too_long_is_seen() -> None:
    b = Builder("x")
    kept = b.call("kept", torch.ops.dovetail_liar.keeps.default, b.inputs[0])
    program = b.program(b.call("y", aten.neg.default, kept))
    refused(program, torch.ones(4), match="storage 1 is freed here; but it is still held")


# --- writes -----------------------------------------------------------------------------------------------------------


def _in_place(*outputs_of: str) -> Program:
    b = Builder("x")
    y = b.call("y", aten.mul.Tensor, b.inputs[0], 2)
    z = b.call("z", aten.relu_.default, y, view_of=y)
    values = {"y": y, "z": z}
    return replace(b.program(*(values[name] for name in outputs_of)), stage=Stage.IN_PLACE)


def test_a_write_of_a_dying_value_passes() -> None:
    run(_in_place("z"), torch.ones(4))


def test_a_value_that_is_read_after_it_was_overwritten_is_seen() -> None:
    refused(_in_place("z", "y"), torch.ones(4), match="y is not read after this; but it lies in y, and is read later")


@pytest.mark.parametrize("is_declared", [False, True])
def test_writing_an_input_needs_a_declaration(is_declared: bool) -> None:
    b = Builder("x")
    (x,) = b.inputs
    program = replace(b.program(b.call("y", aten.relu_.default, x, view_of=x)), stage=Stage.IN_PLACE)
    if is_declared:
        signature = Signature((UserInput(0),), (InputMutation(0, WriteKind.UNTRACKED),))
        run(replace(program, signature=signature), torch.ones(4))
    else:
        refused(program, torch.ones(4), match="writes no input here; but x lies on the storage of one")


# --- calls ------------------------------------------------------------------------------------------------------------


def _graph(function: Callable[..., Any], *inputs: Any) -> CompiledGraph:
    return dovetail.compile(function, inputs).graphs[0]


def test_writes_of_a_plan_pass() -> None:
    def write(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(1)
        y.data.mul_(2)
        z[1:].fill_(3)
        z.t_()
        return x + y + z

    compiled = dovetail.compile(write)
    for requires_grad in (False, True):
        x, y, z = ((torch.ones(2, 2) * 1).requires_grad_(requires_grad) * 1 for _ in range(3))
        with AliasSanitizer("all"):
            compiled(x, y, z)


def test_a_write_beside_the_plan_is_seen() -> None:
    x, y = torch.ones(4), torch.ones(4)
    graph = _graph(lambda x, y: (x.add_(1), y * 2)[1:], x, y)
    with AliasSanitizer("all"):
        graph(x, y)
    unplanned = replace(graph, wrapper=lambda run, args: (args[1].data.add_(1), graph.wrapper(run, args))[1])
    with AliasSanitizer("all"), pytest.raises(AliasViolation, match="not write input 'arg_1'; but 8 bytes changed"):
        unplanned(x, y)
    counted = replace(graph, wrapper=lambda run, args: (args[1].add_(1), graph.wrapper(run, args))[1])
    with AliasSanitizer("none"), pytest.raises(AliasViolation, match="'arg_1'; but its version counter moved"):
        counted(x, y)


def test_a_written_input_that_overlaps_another_is_seen() -> None:
    base = torch.ones(6)
    graph = _graph(lambda x, y: (x.add_(1), y * 2)[1:], torch.ones(4), torch.ones(4))
    with AliasSanitizer("none"), pytest.raises(AliasViolation, match="'arg_0', which is written, shares no memory"):
        graph(base[:4], base[2:])
    with AliasSanitizer("none"):
        graph(base[:4], torch.ones(4))


def test_a_written_input_that_overlaps_another_passes_where_the_program_knows() -> None:
    base = torch.ones(6)
    compiled = dovetail.compile(lambda x, y: (x.add_(1), y * 2)[1:])
    with AliasSanitizer("all"):
        (result,) = compiled(base[:4], base[2:])
    assert torch.equal(result, torch.tensor([4.0, 4, 2, 2]))
    (graph,) = compiled.graphs
    assert SharedBytes((0, 1)) in graph.forward.program.signature.inputs


# --- counting bytes ---------------------------------------------------------------------------------------------------


def test_bytes_are_counted() -> None:
    base = torch.zeros(8, dtype=torch.int16)
    assert not share_a_byte(base[::2], base[1::2])
    assert share_a_byte(base[::2], base[4:5])
    assert not share_a_byte(base[:0], base)
    assert not share_a_byte(base, torch.zeros(8))
    assert occupied(base[1::3], base.data_ptr(), 16).nonzero()[0].tolist() == [2, 3, 8, 9, 14, 15]
    assert occupied(base[1::3], base.data_ptr() + 3, 6).nonzero()[0].tolist() == [0, 5]
    assert occupied(base[3].expand(5), base.data_ptr(), 16).nonzero()[0].tolist() == [6, 7]
    (snapshot,) = snapshots([base, base[1:]])
    assert not snapshot.changed().any()
    base[2] = 1
    assert snapshot.changed().nonzero()[0].tolist() == [4]


def test_intruders_among_many_interleaved_tensors_are_found() -> None:
    base = torch.zeros(64, 64)
    columns = [Tenant(base[:, i], i) for i in range(64)]
    assert intruder(columns, [Tenant(torch.zeros(4), 99)]) is None
    assert intruder([], columns) is None
    corner = Tenant(base[3, 5:6], 99)
    assert intruder(columns, [corner]) == (columns[5], corner)
    assert intruder([corner], columns) == (corner, columns[5])
    assert intruder(columns, [Tenant(base[3, 5:6], 5)]) is None


# --- random programs and models ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", rotated(range(0, BLOCK * BLOCKS, BLOCK), 3))
@pytest.mark.parametrize("generator", [random_program, alias_program], ids=lambda g: g.__name__)
def test_random_programs_do_what_analysis_says(generator: Callable[[int], Any], first: int) -> None:
    sanitizer = AliasSanitizer("all")
    with sanitizer:
        for seed in range(first, first + BLOCK):
            program = generator(seed)
            try:
                check_program(program, dovetail.compile, program.seeds)
            except dovetail.errors.OverlappingMutatedInputs:
                continue  # memory shared through two storages
    assert sanitizer.programs > BLOCK
    assert sanitizer.nodes > 5 * BLOCK


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("entry", rotated(ZOO, 4), ids=str)
def test_models_do_what_analysis_says(entry: Entry) -> None:
    model = entry.model()
    is_large = sum(p.numel() for p in model.parameters()) > LARGE
    sanitizer = AliasSanitizer("none" if is_large else "operands")
    with sanitizer:
        compiled = torch.compile(model, backend="dovetail", fullgraph=True, dynamic=False)
        loss_of(compiled(**entry.batches(1)[0])).backward()
    assert (sanitizer.programs, sanitizer.calls) == (2, 1)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{}, {"arena": True}, {"memory_limit": "1MiB"}])
def test_a_whole_step_is_checked(options: dict[str, Any]) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.GELU(), torch.nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled: Any = dovetail.compile_step(step, **options)
    x = torch.randn(5, 4)
    for _ in range(2):
        compiled(x)
    before = compiled.stats.eager_calls
    with AliasSanitizer("all") as sanitizer:
        compiled(x)
    assert sanitizer.programs == 1
    assert compiled.stats.eager_calls == before


@pytest.mark.usefixtures("alone")
def test_a_violation_in_a_step_is_raised_and_not_run_again_by_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(3)

    @dovetail.compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        weight.add_(x)
        return weight.sum()

    for _ in range(3):
        step(torch.ones(3))
    monkeypatch.setattr("dovetail.testing.sanitizer._updated_inputs", lambda program: frozenset())
    with pytest.raises(AliasViolation, match="the program writes no input here"), AliasSanitizer():
        step(torch.ones(3))
