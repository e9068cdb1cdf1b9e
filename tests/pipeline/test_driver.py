"""The driver: order, skipping, the checks of each level, and passes whose result is dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import InvalidProgram, PassChangedMeaning
from dovetail.ir.program import Program, Stage
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.differential import same_bits, verify_same_results
from dovetail.pipeline.driver import run_passes
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import PASSES, Context, PassSpec
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def _run(program: Program, kind: str = "joint", **options: Any) -> tuple[Program, tuple[Any, ...]]:
    return run_passes(kind, program, Context(Options(**options)), Dump(None, "test", {}))


def _plant(monkeypatch: pytest.MonkeyPatch, function: Any, kind: str = "joint", **facts: Any) -> None:
    told = {"tier": "bitwise", "accepts": frozenset(Stage), "yields": None, **facts}
    spec = PassSpec("planted", run=lambda program, context: function(program), **told)
    monkeypatch.setitem(PASSES, kind, dataclasses.replace(PASSES[kind], specs=(spec,)))


def _small() -> Program:
    b = Builder("x", "y")
    x, y = b.inputs
    first = b.call("first", aten.sub.Tensor, x, y)
    joined = b.call("joined", aten.cat.default, [first, y], shape=(8,))
    return b.program(b.call("last", aten.exp.default, joined, shape=(8,)))


def _redundant() -> Program:
    """Dead code, a copy, and two equal nodes."""
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.exp.default, x)
    b.call("dead", aten.sin.default, x)
    copied = b.call("copied", aten.clone.default, a)
    twin = b.call("twin", aten.exp.default, x)
    return b.program(b.call("last", aten.mul.Tensor, copied, twin))


# --- order ----------------------------------------------------------------------------------------------


def test_all_passes_run_in_order_and_say_what_they_did() -> None:
    result, records = _run(_redundant(), verify=2)
    assert [r.name for r in records] == [spec.name for spec in PASSES["joint"].specs]
    assert [(r.nodes_before, r.nodes_after) for r in records] == [(5, 4), (4, 3), (3, 2)]
    assert records[0].report == "removed 1 unread nodes"
    assert all(r.reason == "" and r.time_us >= 0 for r in records)
    assert body(result) == ["a = exp.default(x)", "last = mul.Tensor(a, a)", "return (last,)"]


def test_skipped_passes_do_not_run() -> None:
    result, records = _run(_redundant(), skip=("no_ops",))
    assert [r.name for r in records] == ["dead_code", "common_subexpressions"]
    assert "copied = clone.default(a)" in body(result)


def test_nothing_runs_after_the_last_pass_asked_for() -> None:
    _, records = _run(_redundant(), stop_after="no_ops")
    assert [r.name for r in records] == ["dead_code", "no_ops"]


def test_options_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SKIP", "common_subexpressions")
    compiled = dovetail.compile(lambda x: (x.exp() * x.exp()).sum() + 1, (torch.ones(2),))
    targets = [node.target for node in compiled.graphs[0].forward.program.nodes]
    assert targets.count(aten.exp.default) == 2


# --- checks ---------------------------------------------------------------------------------------------


def _wrong(program: Program) -> tuple[Program, str]:
    (first, *rest) = program.nodes
    x, y = first.args
    return program.replace_nodes((dataclasses.replace(first, args=(y, x)), *rest)), "swapped operands"


def _edits(program: Program) -> tuple[Program, str]:
    operands = program.nodes[1].args[0]
    assert isinstance(operands, list)
    operands.reverse()
    return program, "edited its input"


def _invalid(program: Program) -> tuple[Program, str]:
    return program.replace_nodes(program.nodes[1:]), "dropped what is read"


def test_a_wrong_pass_is_caught_at_level_2(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, _wrong)
    for level in (0, 1):
        result, _ = _run(_small(), verify=level)
        assert body(result)[0] == "first = sub.Tensor(y, x)"
    with pytest.raises(
        PassChangedMeaning, match=r"pass 'planted' changed the result of program small: output 0 differs"
    ):
        _run(_small(), verify=2)


def test_a_pass_that_edits_its_input_is_caught_at_level_1(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, _edits)
    _run(_small(), verify=0)
    with pytest.raises(InvalidProgram, match=r"a pass does not edit its input\.\n  because   planted"):
        _run(_small(), verify=1)


def test_a_pass_that_breaks_a_rule_is_caught_at_level_1(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, _invalid)
    with pytest.raises(InvalidProgram, match="operands are computed before they are read"):
        _run(_small(), verify=1)


def test_a_broken_program_does_not_come_in() -> None:
    program = _small()
    with pytest.raises(InvalidProgram, match="operands are computed before they are read"):
        _run(program.replace_nodes(program.nodes[::-1]), verify=1)


def test_a_pass_that_moves_a_draw_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("x")
    (x,) = b.inputs
    b.call("drawn", aten.rand_like.default, x)
    program = b.program(b.call("last", aten.exp.default, x))
    _plant(monkeypatch, lambda p: (p.replace_nodes(p.nodes[1:]), "dropped a draw"))
    with pytest.raises(PassChangedMeaning, match="the random generator ends elsewhere"):
        _run(program, verify=2)


def test_a_planted_pass_is_caught_in_a_whole_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, _wrong)
    with pytest.raises(PassChangedMeaning, match="planted"):
        dovetail.compile(lambda x, y: (x - y).exp(), (torch.ones(2), torch.ones(2)), verify=2)


def test_a_pass_says_which_stages_it_takes_and_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, lambda p: (p, "nothing"), accepts=frozenset({Stage.SPLIT}))
    with pytest.raises(InvalidProgram, match="a pass is given a stage that it accepts"):
        _run(_small(), verify=1)
    _plant(monkeypatch, lambda p: (dataclasses.replace(p, stage=Stage.IN_PLACE), "another stage"))
    with pytest.raises(InvalidProgram, match="a pass makes a program of the stage that it says"):
        _run(_small(), verify=1)


# --- every kind of program ------------------------------------------------------------------------------


def _sgd(options: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    weight = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (weight * x).sin().sum()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(gradient * 0.1)
        return loss.detach()

    return dovetail.compile_step(step, **options), weight


def _freeze(options: dict[str, Any]) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()
    return dovetail.freeze(model, (torch.ones(2, 3),), **options)


def _passes_run(trace: Any) -> list[str]:
    return [step.record.name for lowering in trace.lowerings for step in lowering.steps if step.record is not None]


def _run_kind(kind: str, **options: Any) -> Any:
    """Compile something that has programs of a kind; what it left in its compile trace."""
    trace = CompileTrace()
    options["compile_trace"] = trace
    if kind in ("fast", "step"):
        options.update({"numerics": "fast"} if kind == "fast" else {})
        step, _ = _sgd(options)
        for _ in range(2):
            step(torch.ones(3))
    elif kind in ("frozen", "packed"):
        _freeze(options)
    elif kind == "inference":
        dovetail.compile(lambda x: (x.sin() * 2).sum(), **options)(torch.ones(3))
    else:
        dovetail.compile(lambda x: (x.sin() * 2).sum(), **options)(torch.ones(3, requires_grad=True)).backward()
    return trace


def test_passes_whose_results_differ_by_rounding_say_so() -> None:
    specs = {spec.name: spec for passes in PASSES.values() for spec in passes.specs}
    rounding = {name for name, spec in specs.items() if spec.tier == "numerics"}
    assert rounding == {
        "fold_batch_norms",
        "merge_linears",
        "channels_last",
        "prepack",
        "chunk_rows",
        "transpose_weights",
        "panels",
        "recurrent_panels",
    }
    fewer_bits = {name for name, spec in specs.items() if spec.tier == "precision"}
    assert fewer_bits == {"quantize", "narrow"}


@pytest.mark.parametrize("kind", list(PASSES))
def test_every_kind_of_program_goes_through_the_same_loop(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def edits(program: Program) -> tuple[Program, str]:
        operands = next(node.args for node in program.nodes if len(node.args) > 1)
        object.__setattr__(program.nodes[0], "args", (*operands, 7))
        return program, "edited its input"

    _plant(monkeypatch, edits, kind)
    with pytest.raises(InvalidProgram, match="a pass does not edit its input"):
        _run_kind(kind, verify=1)


@pytest.mark.parametrize("kind", list(PASSES))
def test_passes_of_every_kind_can_be_left_out_and_be_the_last(kind: str) -> None:
    name = PASSES[kind].specs[0].name
    assert name in _passes_run(_run_kind(kind))
    assert name not in _passes_run(_run_kind(kind, skip=name))
    later = {spec.name for other in PASSES.values() if other.after == kind for spec in other.specs}
    ran = _passes_run(_run_kind(kind, stop_after=name))
    assert name in ran
    assert not ({spec.name for spec in PASSES[kind].specs[1:]} | later - {name}) & set(ran)


def test_what_a_step_writes_is_compared_at_level_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Program) -> tuple[Program, str]:
        swap = {aten.sub.Tensor: aten.add.Tensor}
        nodes = [dataclasses.replace(n, target=swap.get(n.target, n.target)) for n in program.nodes]
        return program.replace_nodes(tuple(nodes)), "another sign"

    _run_kind("step", verify=2)
    _plant(monkeypatch, wrong, "step")
    with pytest.raises(PassChangedMeaning, match="input variable_weight is left with other contents"):
        _run_kind("step", verify=2)


# --- peaks ----------------------------------------------------------------------------------------------


def _stretched() -> Program:
    """Merging the two equal nodes keeps `a` alive where the peak is."""
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.exp.default, x)
    total = b.call("total", aten.sum.default, a, shape=())
    p = b.call("p", aten.sin.default, x)
    q = b.call("q", aten.cos.default, p)
    other = b.call("other", aten.sum.default, q, shape=())
    twin = b.call("twin", aten.exp.default, x)
    again = b.call("again", aten.prod.default, twin, shape=())
    return b.program(total, other, again)


def test_a_pass_that_raises_the_peak_is_dropped() -> None:
    program = _stretched()
    result, records = _run(program)
    assert result is program
    assert records[-1].reason == "PEAK-RISES: 52 > 36 simulated bytes"
    assert records[-1].nodes_after == len(program.nodes)
    assert records[-1].report == "merged 1 values with an earlier, equal one"


def test_decisions_made_before_hold() -> None:
    program = _stretched()
    for keep, count in ((True, 6), (False, 7)):
        decisions = {"common_subexpressions": keep}
        result, records = run_passes("joint", program, Context(Options()), Dump(None, "test", {}), decisions=decisions)
        assert len(result.nodes) == count
        assert records[-1].reason == ("" if keep else "DECIDED-BEFORE: dropped for the first pattern")


# --- comparing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(1), False),
        (torch.ones(2, 3), torch.ones(3, 2).t(), False),
        (torch.ones(1, 3), torch.ones(3, 1).t(), True),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
        (None, None, True),
    ],
)
def test_same_bits(a: object, b: object, same: bool) -> None:
    assert same_bits(a, b) is same


def test_checking_leaves_the_generator_alone() -> None:
    b = Builder("x")
    program = b.program(b.call("drawn", aten.rand_like.default, b.inputs[0]))
    before = torch.get_rng_state()
    verify_same_results("nothing", program, program, {})
    assert torch.equal(torch.get_rng_state(), before)


def test_a_program_that_refuses_random_numbers_is_passed_over() -> None:
    b = Builder("x")
    program = b.program(b.call("drawn", aten.bernoulli.default, b.inputs[0]))
    verify_same_results("nothing", program, program, {})
    compiled = dovetail.compile(lambda x: x.bernoulli(), verify=2)
    assert compiled(torch.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("layer", [torch.nn.LSTM(3, 4, 2, dropout=0.3), torch.nn.GRU(3, 4), torch.nn.LSTMCell(3, 4)])
def test_recurrent_layers_are_no_faults(layer: torch.nn.Module) -> None:
    """What oneDNN keeps for backward has gaps, and parts of `unsafe_split` lie where the whole lies."""
    x = torch.randn(2, 3, requires_grad=True)
    torch.manual_seed(0)
    expected = layer(x)[0]
    torch.manual_seed(0)
    assert torch.equal(dovetail.compile(layer, verify=2)(x)[0], expected)
