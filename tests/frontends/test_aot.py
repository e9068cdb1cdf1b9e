"""Compilers of the user's: what they are given, what callers see, and what is said of compilers that do not work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import dovetail
from dovetail.capture.recording import Recording
from dovetail.compat.functorch import debug_nop
from dovetail.errors import BadCompiledResult, BadCompiler, BadOptionValue
from dovetail.ir.graph_signature import GraphSignature
from dovetail.partition.problem import Problem
from tests.doors import assert_as_eager
from tests.harness.agreement import check_program
from tests.harness.aliasing import alias_program
from tests.harness.programs import random_program
from tests.models.zoo import ZOO, loss_of
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")
aten = torch.ops.aten


def plain(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph as it is."""
    return gm


def interpreter(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return fx.Interpreter(gm).run


def cloning(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Gives every result memory of its own, whatever the graph says."""

    def run(*inputs: Any) -> list[Any]:
        return [r.clone() if isinstance(r, Tensor) else r for r in gm(*inputs)]

    return run


def contiguous(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Lays every result out again."""

    def run(*inputs: Any) -> list[Any]:
        return [torch.empty(r.shape, dtype=r.dtype).copy_(r) if isinstance(r, Tensor) else r for r in gm(*inputs)]

    return run


COMPILERS = (plain, interpreter, cloning, contiguous, dovetail.make_boxed_compiler(plain))


def no_mutation(gm: fx.GraphModule) -> bool:
    targets = [n.target for n in gm.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return not any(target._schema.is_mutable for target in targets)


# --- what the caller sees -------------------------------------------------------------------------------------------


def everything(x: Tensor, y: Tensor, z: Tensor) -> tuple[Any, ...]:
    x.add_(y.detach())
    drawn = torch.rand_like(z)
    w = (z * y).sin() + drawn
    return x.view(-1), w, w.t(), z, z.detach(), w.exp().sum(), y[0]


def three_inputs(seed: int) -> tuple[list[Any], list[Tensor]]:
    torch.manual_seed(seed)
    x, y, z = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    return [x, y, z], [y, z]


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c.__name__)
def test_a_function_that_does_everything_is_as_eager(compiler: Any) -> None:
    assert_as_eager(everything, dovetail.aot_function(everything, compiler), three_inputs)


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("first", rotated(range(0, 60, 10), 6))
def test_arguments_that_share_memory(compiler: Any, first: int) -> None:
    for seed in range(first, first + 10):
        program = alias_program(seed)
        check_program(program, partial(dovetail.aot_function, fw_compiler=compiler), program.seeds)


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("seeds", [range(40, 50), (1024, 1103, 1153, 1173)], ids=["any", "expanded results"])
def test_random_programs(compiler: Any, seeds: Sequence[int]) -> None:
    for seed in seeds:
        check_program(random_program(seed), partial(dovetail.aot_function, fw_compiler=compiler))


def test_strides_that_torch_describes_wrongly() -> None:
    x = torch.randn(2, 3, 4).permute(1, 0, 2)
    results = [call(x, x) for call in (torch.heaviside, dovetail.aot_function(torch.heaviside, plain))]
    assert results[0].stride() == results[1].stride()


def test_random_generators_of_the_user() -> None:
    own = torch.Generator()

    def draw(x: Tensor, own: torch.Generator) -> Tensor:
        return x + torch.rand(2, generator=own) + torch.rand(2) + torch.randn(2, generator=own)

    compiled = dovetail.aot_function(draw, plain)
    for seed in (1, 2):
        found = []
        for call in (draw, compiled):
            torch.manual_seed(5)
            found.append((call(torch.ones(2), own.manual_seed(seed)), own.get_state()))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


def test_control_flow_with_random_numbers() -> None:
    def branch(x: Tensor) -> Tensor:
        dropped = torch.nn.functional.dropout
        return torch.cond(x.sum() > 0, lambda x: dropped(x.sin()), lambda x: x.cos(), (x,))

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return dovetail.aot_module_simplified(gm, example_inputs, debug_nop)

    compiled = torch.compile(branch, backend=backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        results = []
        for call in (branch, compiled):
            torch.manual_seed(0)
            results.append(call(x))
        assert torch.equal(*results)


def test_copies_of_a_module() -> None:
    module = dovetail.aot_module(nn.Linear(2, 2), plain)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(torch.ones(1, 2)).any()
    assert module(torch.ones(1, 2)).any()


def test_the_same_tensor_twice() -> None:
    def both(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    def twice(seed: int) -> tuple[list[Any], list[Tensor]]:
        x = torch.full((3,), float(seed + 1))
        return [x, x], [x]

    assert_as_eager(both, dovetail.aot_function(both, plain), twice)


def test_a_module_trains_as_in_eager_mode() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
    other = copy.deepcopy(eager)
    compiled = dovetail.aot_module(other, plain)
    states = []
    for module, parameters in ((eager, eager.parameters()), (compiled, compiled.parameters())):
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.randn(5, 4)).square().sum().backward()
            optimizer.step()
    states = [eager.state_dict(), other.state_dict()]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert {name.removeprefix("orig_module.") for name in compiled.state_dict()} == set(states[0])


def test_a_module_switches_to_evaluation() -> None:
    module = nn.Dropout(0.5)
    compiled = dovetail.aot_module(module, plain)
    x = torch.ones(100)
    assert not torch.equal(compiled(x), x)
    compiled.eval()
    assert torch.equal(compiled(x), x)


@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt2"])
@pytest.mark.parametrize("compiler", rotated([plain, cloning], 2), ids=lambda c: c.__name__)
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_a_back_end_of_a_few_lines_trains_models(name: str, compiler: Any) -> None:
    entry = next(entry for entry in ZOO if entry.name == name)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return dovetail.aot_module_simplified(gm, example_inputs, compiler)

    found = []
    for arm in (None, backend):
        model = entry.model()
        call = model if arm is None else torch.compile(model, backend=arm, fullgraph=True)
        torch.manual_seed(7)
        loss = loss_of(call(**entry.batches(1)[0]))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(*found, strict=True))


# --- what the compiler is given -------------------------------------------------------------------------------------


def test_halves_are_functional_and_described() -> None:
    seen: list[tuple[fx.GraphModule, list[Any], GraphSignature]] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any], *, signature: GraphSignature) -> fx.GraphModule:
        seen.append((gm, example_inputs, signature))
        return gm

    def step(x: Tensor, w: Tensor) -> Tensor:
        x.add_(1)
        return (x @ w).relu().sum()

    x, w = torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)
    compiled = dovetail.aot_function(step, compiler)
    compiled(x, w)
    assert len(seen) == 1, "backward is compiled when it runs"
    compiled(x, w).backward()
    (forward, examples, signature), (backward, tangents, backward_signature) = seen
    assert all(no_mutation(gm) for gm in (forward, backward))
    assert [tuple(e.shape) for e in examples] == [(2, 3), (3, 3)]
    assert signature.user_inputs_to_mutate == {"add": "arg_0"}
    assert list(backward_signature.gradients_to_user_inputs.values()) == ["arg_1"]
    assert len(tangents) == len(backward_signature.inputs)
    assert all("val" in node.meta for node in forward.graph.nodes if node.op != "output")


def test_each_half_has_its_compiler() -> None:
    calls: list[str] = []

    def named(name: str) -> Callable[..., Any]:
        def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
            calls.append(name)
            return gm

        return compiler

    compiled = dovetail.aot_function(
        torch.sin, named("forward"), named("backward"), inference_compiler=named("inference")
    )
    compiled(torch.ones(2))
    assert calls == ["inference"]
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert calls == ["inference", "forward", "backward"]


def test_decompositions() -> None:
    targets: list[object] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
        targets.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    table = {aten.silu: lambda x: x * torch.sigmoid(x), aten.silu_backward.default: lambda g, x: g * torch.ones_like(x)}
    compiled = dovetail.aot_function(torch.nn.functional.silu, compiler, decompositions=table)
    x = torch.randn(3, requires_grad=True)
    result = compiled(x)
    result.sum().backward()
    assert torch.equal(result, x * torch.sigmoid(x))
    assert torch.equal(x.grad, torch.ones(3)), "the rule's, right or wrong"
    assert aten.silu.default not in targets
    assert aten.silu_backward.default not in targets


def test_sizes_may_be_symbols() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
        graphs.append(gm)
        assert any(isinstance(size, torch.SymInt) for x in example_inputs if isinstance(x, Tensor) for size in x.shape)
        return gm

    compiled = dovetail.aot_function(lambda x: x.reshape(-1).sin().sum() * x.shape[0], compiler, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        compiled(x).backward()
        assert torch.equal(x.grad, (x.detach().cos() * rows))
    assert len(graphs) == 2


def test_sizes_of_dynamo() -> None:
    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return dovetail.aot_module_simplified(gm, example_inputs, cloning)

    compiled = torch.compile(lambda x: (x.sin() * x.shape[0]).reshape(-1), backend=backend, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, x.detach().cos() * rows)


def test_a_module_with_weights_is_compiled_at_once() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
        graphs.append(gm)
        return gm

    layer = nn.Linear(3, 2)
    compiled = dovetail.aot_module_simplified(layer, [torch.ones(1, 3)], compiler)
    assert len(graphs) == 1
    x = torch.randn(1, 3)
    assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1


def test_boxed_code_gets_a_list_that_it_may_empty() -> None:
    seen: list[object] = []

    @dovetail.make_boxed_compiler
    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            seen.append(len(inputs))
            return gm(*inputs)

        return run

    assert torch.equal(dovetail.aot_function(torch.neg, compiler)(torch.ones(2)), -torch.ones(2))
    assert seen == [1]


# --- compilers that do not work -------------------------------------------------------------------------------------


def returning(result: Any) -> Callable[..., Any]:
    def bad(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: result

    return bad


def test_a_compiler_that_returns_no_callable() -> None:
    def forgot(gm: fx.GraphModule, example_inputs: list[Any]) -> None:
        gm.recompile()

    with pytest.raises(BadCompiler, match=r"DT-COMPILER-001 .*'forgot' returned None"):
        dovetail.aot_function(torch.sin, forgot)(torch.ones(2))


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (torch.ones(2), "returned a torch.float32 tensor"),
        ([], "returned a list of 0"),
        ([torch.ones(2), torch.ones(2)], "returned a list of 2"),
        ([torch.ones(3)], r"shape \[3\]"),
        ([torch.ones(2, 1)], r"shape \[2, 1\]"),
        ([torch.ones(2, dtype=torch.float64)], "float64"),
        ([torch.ones(2, device="meta")], "on meta"),
        ([3], "gave a int"),
        (None, "returned None"),
    ],
)
def test_code_that_returns_something_else(result: Any, told: str) -> None:
    with pytest.raises(BadCompiledResult, match=told):
        dovetail.aot_function(torch.sin, returning(result))(torch.ones(2))


def test_code_that_hands_back_its_input() -> None:
    """A compiler that drops a clone: the caller's tensors stay apart."""
    compiled = dovetail.aot_function(torch.clone, lambda gm, _: lambda x: (x,))
    x = torch.ones(2)
    compiled(x).add_(1)
    assert torch.equal(x, torch.ones(2))


def test_code_that_hands_back_one_tensor_twice() -> None:
    compiled = dovetail.aot_function(
        lambda x: (x + 1, x + 1), lambda gm, _: lambda x: [x + 1] * 2, skip="common_subexpressions"
    )
    first, second = compiled(torch.ones(2))
    first.add_(1)
    assert torch.equal(second, torch.full((2,), 2.0))


def _chain(x: Tensor) -> Tensor:
    return x.sin().exp().tanh().cos().sum()


@pytest.mark.parametrize("kept", [0, 1, 2, None])
def test_a_partition_of_ones_own(kept: int | None) -> None:
    asked: list[Problem] = []

    def choose(problem: Problem) -> list[int]:
        asked.append(problem)
        return [n for n, size in enumerate(problem.sizes) if size is not None] if kept is None else [kept]

    compiled = dovetail.aot_function(_chain, plain, partition=choose)
    x, y = (torch.linspace(0, 1, 5, requires_grad=True) for _ in range(2))
    compiled(x).backward()
    _chain(y).backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    assert sorted(asked[0].wanted) == [1, 2]  # what exp and tanh give; x itself costs nothing
    residuals = [name for name in compiled.graphs[0].residuals if not name.startswith("arg")]
    assert len(residuals) == (2 if kept is None else 1)


def test_all_is_saved_unless_told_otherwise() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = x.sin().cos().tanh() @ w
        return x.sum()

    def residuals(**options: Any) -> int:
        compiled = dovetail.aot_function(layers, plain, **options)
        compiled(torch.ones(256, 1024, requires_grad=True), torch.ones(1024, 1024, requires_grad=True))
        return len(compiled.graphs[0].residuals)

    assert residuals() == residuals(partition="default") > residuals(partition="auto")


def test_wrong_partitions() -> None:
    x = torch.ones(3, requires_grad=True)
    for wrong in ([10_000], [-1], 3, ["a"], None):
        with pytest.raises(BadOptionValue, match="the function returned it"):
            dovetail.aot_function(_chain, plain, partition=lambda problem, wrong=wrong: wrong)(x)  # type: ignore[misc]


def test_what_is_refused() -> None:
    with pytest.raises(BadOptionValue, match="fw_compiler"):
        dovetail.aot_function(torch.sin, None)  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match=r"torch\.nn\.Module"):
        dovetail.aot_module(torch.sin, plain)  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match="compilers"):
        dovetail.compile(torch.sin, compilers=plain)


def test_a_compiler_that_raises() -> None:
    def broken(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ZeroDivisionError("mine")

    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError, match="mine"):
        dovetail.aot_function(torch.Tensor.add_, broken)(x, 1)
    assert torch.equal(x, torch.ones(2))


def test_backward_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient that `sum` gives is expanded; compilers get graphs for gradients that lie as the outputs do."""
    recorded: list[str] = []
    programs = Recording.programs

    def noted(self: Recording, *args: Any) -> Any:
        recorded.append(args[0])
        return programs(self, *args)

    monkeypatch.setattr(Recording, "programs", noted)
    graphs: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) * 2

    inputs = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    run = dovetail.aot_function(function, compiler, partition="min_cut")
    for reduced in (Tensor.sum, lambda y: y.t().contiguous().sum(), lambda y: (y * y).mean()):
        expected = torch.autograd.grad(reduced(function(*inputs)), inputs)
        assert all(map(torch.equal, torch.autograd.grad(reduced(run(*inputs)), inputs), expected))
    assert len(recorded) == 1
    assert len(graphs) == 2


@pytest.mark.parametrize("wrong", [None, 1, "inductor"])
def test_what_is_no_compiler_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(BadOptionValue, match="option 'compiler' cannot be"):
        dovetail.make_boxed_compiler(wrong)
