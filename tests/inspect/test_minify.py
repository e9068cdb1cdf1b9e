"""The minifier finds a planted fault, keeps the failure it was given, and leaves nothing out that matters."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.errors import DoesNotFail, FlakyFailure
from dovetail.frontends.function import compile as compile_function
from dovetail.inspect.minify import Minified, Step, minify, minify_module, shortened
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.minify_oracles import Agrees, Compiles, Failure, FailureKind, SameFailure
from dovetail.inspect.minify_recording import Recording
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Program, ScalarMeta, Stage, meta_symbols
from dovetail.ir.signature import Constant, SizeInput
from dovetail.ir.stages import verify_program
from dovetail.ir.text import Names, plain_call
from dovetail.ops.facts import writes_of
from dovetail.ops.interpret import size_numbers
from dovetail.pipeline.differential import plain_function
from dovetail.torch_compat.dispatch import storage_key
from tests.harness.functional_programs import functional_program
from tests.harness.programs import random_program
from tests.inspect.planted import BROKEN, Computes, Contains, long_program, smaller_failures
from tests.rotation import rotated

aten = torch.ops.aten
FAULT = "aten.erf.default({a})"


def _check(found: Minified, oracle: Any) -> None:
    """What is given back is a program that runs, described truly, fails as the whole does, and not without any part."""
    program, inputs = found.program, found.inputs
    verify_program(program, lambda node: bool(writes_of(node)))
    assert Recording(program, inputs).finished == len(program.nodes)
    plain_function(program)(clone_together(inputs))
    same = SameFailure(found.original, [])
    assert same.holds(oracle(program, clone_together(inputs)))
    assert smaller_failures(program, inputs, lambda p, given: same.holds(oracle(p, given))) == []
    tensors = [(v.tensor, x) for v, x in zip(program.inputs, inputs, strict=True) if v.is_tensor]
    sizes = size_numbers(zip(program.inputs, inputs, strict=True))
    for meta, item in tensors:
        known = set(meta_symbols(meta)) <= sizes.keys()
        assert known
        if not list(meta_symbols(meta)):
            assert (meta.shape, meta.stride, meta.offset) == (tuple(item.shape), item.stride(), item.storage_offset())
        for other, another in tensors:
            assert (meta.storage == other.storage) == (storage_key(item) == storage_key(another))


# --- the goal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "at", "writes"), rotated([*product([0, 1], [0, 3, 500, 950, 999], [False, True])], 5))
def test_a_bad_operator_among_a_thousand(seed: int, at: int, writes: bool) -> None:
    program, inputs = long_program(seed, 1000, FAULT, at, writes=writes)
    oracle = Contains(BROKEN)
    found = minify(program, inputs, oracle)
    assert len(found.program.nodes) <= 8
    assert oracle.calls <= 300
    assert found.asked == oracle.calls
    assert found.is_complete
    _check(found, oracle)


@pytest.mark.parametrize(
    ("seed", "at", "writes"), rotated([(0, 500, True), (0, 3, True), (1, 500, False), (1, 950, True)], 4)
)
def test_a_wrong_kernel_among_a_thousand(seed: int, at: int, writes: bool) -> None:
    program, inputs = long_program(seed, 1000, FAULT, at, writes=writes)
    oracle = Computes(BROKEN, lambda x: torch.erf(x) + 0.01 * x)
    found = minify(program, inputs, oracle)
    assert len(found.program.nodes) <= 8
    assert oracle.calls <= 300
    _check(found, oracle)


@pytest.mark.parametrize("seed", [0, 1])
def test_three_operators_that_fail_only_together(seed: int) -> None:
    program, inputs = long_program(seed, 1000, FAULT, 40, writes=True)
    oracle = Contains(BROKEN, aten.cos_.default, aten.t.default)
    found = minify(program, inputs, oracle)
    assert len(found.program.nodes) == 3
    assert oracle.calls <= 300
    _check(found, oracle)


@pytest.mark.parametrize("seed", rotated(range(120), 5))
def test_random_functional_programs_become_minimal(seed: int) -> None:
    source = functional_program(seed)
    program = replace(source.program(), stage=Stage.IMPURE)  # copies back into inputs are among the nodes
    _shrink_and_check(program, source.make_inputs(), random.Random(seed))


@pytest.mark.parametrize("seed", rotated(range(60), 5))
def test_random_programs_that_write_become_minimal(seed: int) -> None:
    function, make = random_program(seed).build()
    inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in make(0)[0]]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            gm = make_fx(function)(*clone_together(inputs))
    except Exception as error:
        pytest.skip(f"torch cannot trace it: {error}")
    program = lift(gm, inputs).program
    held = [getattr(gm, role.name) for role in program.signature.inputs if isinstance(role, Constant)]
    _shrink_and_check(program, [*inputs, *held], random.Random(seed))


def _shrink_and_check(program: Program, inputs: list[Any], choose: random.Random) -> None:
    before = clone_together(inputs)
    faulty = choose.sample(program.nodes, min(len(program.nodes), choose.choice([1, 1, 2])))
    oracle = Contains(*(node.target for node in faulty))
    found = minify(program, inputs, oracle)
    assert len(found.program.nodes) <= len(faulty)
    _check(found, oracle)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, inputs, strict=True))


def test_delta_debugging_gives_a_minimal_part() -> None:
    for seed in range(50):
        choose = random.Random(seed)
        needed = set(choose.sample(range(100), choose.randint(0, 6)))
        asked: list[int] = []

        def fails(items: Any, needed: set[int] = needed, asked: list[int] = asked) -> bool:
            asked.append(1)
            return needed.issubset(items)

        assert set(shortened(range(100), fails)) == needed
        assert len(asked) < 150


# --- what is kept ---------------------------------------------------------------------------------------------------


class _Wrong:
    """An executor that runs erf, in place or into given memory or not, and gives too much."""

    name = "wrong"

    def claim(self, node: Node) -> bool:
        return node.target in (BROKEN, aten.erf_.default, aten.erf.out)

    def call(self, names: Names, node: Node) -> str:
        return f"{plain_call(names, node)}.add_(0.125)"


WRONG = {"executors": (_Wrong(), "aten")}


def _lifted(function: Any, *inputs: Any, mode: str = "real") -> Program:
    return lift(make_fx(function, tracing_mode=mode)(*clone_together(inputs)), inputs if mode == "real" else ()).program


def test_a_compiler_that_computes_wrongly() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(20):
            x = torch.cos(x @ w) + 1
        y = torch.erf(x)
        for _ in range(20):
            y = y * 1.01 + 0.5
        return y.sum(), x

    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    program = _lifted(function, *inputs)
    oracle = Agrees(1e-4, WRONG)
    assert Agrees(1e-4)(program, clone_together(inputs)) is None
    found = minify(program, inputs, oracle)
    assert [node.target for node in found.program.nodes] == [BROKEN]
    assert found.failure.what == "numbers"
    assert found.failure.amount > 0.01


def test_a_wrong_write_to_an_input_stays_a_write_to_an_input() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        for _ in range(5):
            y = torch.cos(y) * 2
        x.add_(y)
        x.copy_(torch.erf(x))
        return (y.sum(),)

    inputs = [torch.rand(4), torch.rand(4)]
    program = _lifted(function, *inputs)
    found = minify(program, inputs, Agrees(1e-4, WRONG))
    targets = [node.target for node in found.program.nodes]
    assert len(targets) <= 2
    assert BROKEN in targets

    class WritesAnInput:
        def __call__(self, program: Program, given: list[Any]) -> Failure | None:
            before = clone_together(given)
            plain_function(program)(list(given))
            changed = any(not torch.equal(a, b) for a, b in zip(before, given, strict=True))
            return Failure(FailureKind.DIFFERS, "an input is written") if changed else None

    found = minify(program, inputs, WritesAnInput())
    (node,) = found.program.nodes
    assert writes_of(node)
    assert node.operands()[0] in found.program.inputs


def test_inputs_that_share_memory_share_it_still() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        z = torch.cos(z) + z
        x.mul_(2)
        z = z + y.sum()
        return z * 2, x.exp()

    memory = torch.arange(6.0)
    inputs = [memory[:4], memory[2:], torch.rand(4)]
    program = replace(_lifted(function, *inputs), stage=Stage.IMPURE)

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        """Fails where a write to one input shows in another one that is read."""
        together = plain_function(program)(list(clone_together(given)))
        apart = plain_function(program)([x.clone() for x in given])
        same = all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
        return None if same else Failure(FailureKind.RAISED, "Shared", "memory")

    found = minify(program, inputs, oracle)
    assert len(found.program.nodes) == 2
    x, y = found.program.inputs
    assert x.tensor.storage == y.tensor.storage
    assert storage_key(found.inputs[0]) == storage_key(found.inputs[1])
    _check(found, oracle)


def test_an_input_that_nobody_reads_stays_where_the_failure_needs_it() -> None:
    memory = torch.rand(8)
    inputs = [memory[:4], torch.rand(4), memory[4:], torch.rand(4)]
    program = _lifted(lambda a, b, c, d: (torch.erf(torch.cos(a)) + b, d * 2), *inputs)

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        keys = [storage_key(item) for item in given]
        shares = len(set(keys)) < len(keys) and BROKEN in [node.target for node in program.nodes]
        return Failure(FailureKind.RAISED, "Shared", "memory") if shares else None

    found = minify(program, inputs, oracle)
    assert [node.target for node in found.program.nodes] == [BROKEN]
    assert {value.name for value in found.program.inputs} == {"a_1", "c_1"}


def test_a_program_of_forward_and_backward(tmp_path: Path) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(4):
            x = torch.cos(x @ w)
        return torch.erf(x).sum()

    x, w = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
    compile_function(function, dump=str(tmp_path), dump_calls=True)(x, w).backward()
    tried = 0
    for step in rotated(sorted(tmp_path.rglob("*.json")), 2):
        source = read_source(step)
        for target in {node.target for node in source.program.nodes}:
            oracle = Contains(target)
            found = minify(source.program, source.inputs, oracle)
            assert [node.target for node in found.program.nodes] == [target]
            tried += 1
    assert tried > 20


def test_an_input_made_of_a_view_does_not_pretend_to_share_memory_with_what_stays() -> None:
    def function(x: torch.Tensor) -> Any:
        a = torch.cos(x)
        b = a.t()
        return torch.erf(b) + a

    inputs = [torch.rand(3, 3)]
    program = _lifted(function, *inputs)
    oracle = Contains(aten.cos.default, BROKEN)
    found = minify(program, inputs, oracle)
    assert [node.target for node in found.program.nodes] == [aten.cos.default, BROKEN]
    _check(found, oracle)


def test_symbolic_sizes_stay_symbolic() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        flat = x.reshape(x.shape[0] * x.shape[1])
        wide = torch.cat([flat, flat * 2])
        made = torch.cos(y) + y
        return torch.erf(wide).view(2, x.shape[0], x.shape[1]), made

    inputs = [torch.rand(3, 5), torch.rand(7)]
    gm = make_fx(function, tracing_mode="symbolic")(*inputs)
    program = lift(gm).program
    oracle = Contains(BROKEN)
    found = minify(program, inputs, oracle)
    (node,) = found.program.nodes
    assert list(meta_symbols(node.results()[0].meta))
    assert any(isinstance(role, SizeInput) for role in found.program.signature.inputs)
    _check(found, oracle)
    found = minify(program, inputs, Contains(BROKEN, aten.view.default))
    assert {node.target for node in found.program.nodes} == {BROKEN, aten.view.default}
    assert len(found.program.nodes) == 2
    view = next(node for node in found.program.nodes if node.target is aten.view.default)
    assert any(not value.is_tensor for value in view.operands())  # a size that is read when it runs
    _check(found, Contains(BROKEN, aten.view.default))


def test_symbolic_programs_are_compiled_with_open_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        y = torch.cos(x) * x.shape[0]
        return torch.erf(y.view(x.shape[1], x.shape[0])) + 1

    inputs = [torch.rand(3, 5)]
    program = lift(make_fx(function, tracing_mode="symbolic")(*inputs)).program
    found = minify(program, inputs, Agrees(1e-4, WRONG))
    assert [node.target for node in found.program.nodes] == [BROKEN]
    assert Agrees(1e-4)(found.program, clone_together(found.inputs)) is None


def test_numbers_that_nodes_make_become_inputs() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size < 10)
        return torch.erf(torch.cos(x).expand(size, 4) * 2), x + 1

    inputs = [torch.rand(4), torch.tensor(3)]
    gm = make_fx(function, tracing_mode="symbolic")(*inputs)
    program = lift(gm).program
    found = minify(program, inputs, Contains(BROKEN, aten.mul.Tensor))
    assert [node.target for node in found.program.nodes] == [aten.mul.Tensor, BROKEN]
    assert not any(isinstance(value.meta, ScalarMeta) and value.name == "item" for value in found.program.inputs)
    plain_function(found.program)(list(found.inputs))


def test_only_the_failure_that_was_asked_for_is_kept() -> None:
    program, inputs = long_program(4, 200, FAULT, 120)

    def fails(first: Any, second: Any) -> Any:
        def oracle(program: Program, given: list[Any]) -> Failure | None:
            targets = [node.target for node in program.nodes]
            for target, text in ((first, "first"), (second, "second")):
                if target in targets:
                    return Failure(FailureKind.RAISED, "RuntimeError", f"the {text} fault, of {len(targets)} nodes")
            return None

        return oracle

    found = minify(program, inputs, fails(aten.t.default, BROKEN))
    assert [node.target for node in found.program.nodes] == [aten.t.default]
    found = minify(program, inputs, fails(BROKEN, aten.t.default))
    assert [node.target for node in found.program.nodes] == [BROKEN]
    assert "first" in found.failure.text


def test_gradients_are_still_asked_for() -> None:
    def function(x: torch.Tensor) -> Any:
        return (torch.erf(torch.cos(x) * 2) + 1).sum()

    gm = make_fx(function)(torch.rand(4))
    x = torch.rand(4, requires_grad=True)

    def fails(gm: fx.GraphModule, inputs: list[Any]) -> None:
        results = gm(*inputs)
        (grad,) = torch.autograd.grad(sum(r.sum() for r in results), [i for i in inputs if i.requires_grad][:1])
        if "erf" in gm.code and grad.abs().max() > 0:
            raise ValueError("a gradient arrives")

    found = minify_module(gm, [x], lambda gm, inputs: fails(gm, inputs) if isinstance(gm(*inputs), tuple) else None)
    assert [n.target for n in found.module.graph.nodes if n.op == "call_function"] == [BROKEN]


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_what_does_not_fail_is_refused() -> None:
    program, inputs = long_program(0, 20, "", 0)
    with pytest.raises(DoesNotFail, match="DT-MINIFY-001"):
        minify(program, inputs, Contains(BROKEN))
    with pytest.raises(DoesNotFail):
        minify(program, inputs, Compiles())


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_failure_that_comes_and_goes_is_refused(period: int) -> None:
    program, inputs = long_program(0, 30, FAULT, 20)
    calls: list[int] = []

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        calls.append(1)
        if len(calls) == 1 or len(calls) % period:
            return Contains(BROKEN)(program, given)
        return None

    if period == 2:
        with pytest.raises(FlakyFailure, match="no failure"):
            minify(program, inputs, oracle)
        assert len(calls) == 2
        return
    try:
        found = minify(program, inputs, oracle)
    except FlakyFailure:
        return
    assert Contains(BROKEN)(found.program, list(found.inputs)) is not None


def test_a_result_that_does_not_fail_again_is_refused() -> None:
    program, inputs = long_program(0, 30, FAULT, 20)
    steady = Contains(BROKEN)
    seen: set[int] = set()

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        size = len(program.nodes)
        if size < 3 and size in seen:
            return None
        seen.add(size)
        return steady(program, given)

    with pytest.raises(FlakyFailure, match="no failure"):
        minify(program, inputs, oracle)


def test_the_limit_gives_back_the_best_so_far() -> None:
    program, inputs = long_program(0, 300, FAULT, 200)
    oracle = Contains(BROKEN)
    found = minify(program, inputs, oracle, limit=8)
    assert not found.is_complete
    assert 1 < len(found.program.nodes) < 300
    assert oracle.calls <= 10
    assert Contains(BROKEN)(found.program, list(found.inputs)) is not None


def test_progress_and_steps_tell_what_is_left() -> None:
    program, inputs = long_program(0, 100, FAULT, 60)
    seen: list[Step] = []
    found = minify(program, inputs, Contains(BROKEN), progress=seen.append)
    assert found.steps[0] == Step("all", len(program.nodes), 3, 2)
    assert [step.nodes for step in found.steps] == sorted((s.nodes for s in found.steps), reverse=True)
    assert {"beginning", "end"} <= {step.name for step in seen}
    assert str(found).startswith(f"{len(found.program.nodes)} of {len(program.nodes)} nodes")


def test_a_program_that_cannot_run_to_its_end() -> None:
    """What comes after the operator that raises is unknown, and is never asked for."""
    program, inputs = long_program(2, 60, "aten.view.default({a}, [4, 4])", 30)
    nodes = [replace(n, args=(n.args[0], [5, 5])) if n.target is aten.view.default else n for n in program.nodes]
    program = program.replace_nodes(tuple(nodes))

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        try:
            plain_function(program)(list(given))
        except RuntimeError as error:
            return Failure(FailureKind.RAISED, "RuntimeError", str(error))
        return None

    found = minify(program, inputs, oracle)
    assert [node.target for node in found.program.nodes] == [aten.view.default]


# --- graph modules ----------------------------------------------------------------------------------------------------


class _Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(10):
            y = torch.cos(y)
        scaled = torch.erf(x) * self.scale
        return {"scaled": scaled + 1, "y": y}


def test_a_module_keeps_its_tensors_and_its_names(tmp_path: Path) -> None:
    held = _Held()
    before = held.scale.clone()
    exported = torch.export.export(held, (torch.rand(4), torch.rand(4)))
    gm = exported.module(check_guards=False)

    def fails(gm: fx.GraphModule, inputs: list[Any]) -> None:
        gm(*inputs)
        scaled = [n for n in gm.graph.nodes if n.op == "get_attr" and "scale" in str(n.target)]
        if scaled and any(user.target is aten.mul.Tensor for n in scaled for user in n.users):
            raise RuntimeError(f"cannot scale {gm.graph.nodes}")

    found = minify_module(gm, [torch.rand(4), torch.rand(4)], fails)
    calls = [node for node in found.module.graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [aten.mul.Tensor]
    assert len(found.inputs) == 1
    assert torch.equal(held.scale, before)
    found.module(*found.inputs)
    assert "1 of" in str(found)
