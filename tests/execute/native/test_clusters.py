"""Clusters of drawn and of chosen programs: eager's bits in results and inputs, and the same version counters."""

from __future__ import annotations

import operator
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.native.clusters import clusters_of
from dovetail.execute.native.executor import NativeExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Program
from tests.execute.native.programs import (
    Drafted,
    aten,
    calls_counted,
    compiled,
    drawn_elements,
    drawn_program,
    outcome,
    rows_counted,
)
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("seed", rotated(range(1000), of=20))
def test_drawn_programs(seed: int) -> None:
    draft, program = drawn_program(seed)
    expected = outcome(compiled(program, native=False), draft.arguments())
    code = compiled(program)
    assert outcome(code, draft.arguments()) == expected
    assert outcome(code, draft.arguments()) == expected, "the second time"


def test_drawn_programs_have_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    for seed in range(12):
        draft, program = drawn_program(seed)
        compiled(program)(draft.arguments())
    assert len(answers) > 10
    assert set(answers) == {0}


def _elements(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def _adam(count: int) -> tuple[Drafted, list[Any]]:
    draft = Drafted()
    p, g, m, v = (
        draft.base(_elements(count, seed).abs() if seed == 3 else _elements(count, seed)) for seed in range(4)
    )
    rate = draft.number(0.01)
    draft.add(aten.lerp_.Scalar, m, g, 0.1)
    draft.add(aten.mul_.Tensor, v, 0.999)
    draft.add(aten.addcmul_.default, v, g, g, value=0.001)
    root = draft.add(aten.sqrt.default, v)
    least = draft.add(aten.add_.Tensor, root, 1e-8)
    step = draft.compute(operator.neg, rate)
    draft.add(aten.addcdiv_.default, p, m, least, value=step)
    return draft, [p]


def test_an_update_is_one_call_that_stores_what_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, outputs = _adam(1000)
    program = draft.program(outputs)
    code = compiled(program)
    assert code.source.count("native_call(") == 1
    (call,) = (line for line in code.source.splitlines() if "native_call(" in line)
    assert "(x2, x3, x0, x1, pack(" in call, "the square root exists in registers only"
    assert "empty" not in code.source
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]


def test_numbers_leave_sizes_known() -> None:
    """What the program needs later is room for a cluster, whatever the rate is that somebody hands in."""
    draft = Segment()
    x, rate = draft.input(_elements(100)), draft.number(0.1)
    draft.real[rate] = 0.1  # type: ignore[assignment]
    total = draft.call(aten.sum.default, draft.call(aten.mul.Tensor, x, rate))
    made = draft.call(aten.exp.default, x)
    twice = draft.call(aten.expand_copy.default, x, [3, 100])
    program = draft.program([total, made, twice, x])
    code = compiled(program)
    assert [code.executors.owner(node).name for node in program.nodes] == ["native"] * 3 + ["aten"]


def test_who_runs_what() -> None:
    draft, outputs = _adam(10)
    total = draft.add(aten.sum.default, outputs[0])
    program = draft.program([*outputs, total])
    code = compiled(program)
    owners = [code.executors.owner(node).name for node in program.nodes]
    assert owners == ["native"] * 5 + ["aten", "native", "aten"]


def test_equal_loops_share_a_kernel() -> None:
    draft, outputs = _adam(100)
    other, more = _adam(777)
    functions = [
        {row.function for cluster in clusters_of(d.program(o), lambda _: True) for row in cluster.rows}
        for d, o in ((draft, outputs), (other, more))
    ]
    assert functions[0] == functions[1]
    assert len(functions[0]) == 1


def test_views_that_overlap_are_not_mixed() -> None:
    """The second half begins before the first ends: elements of one are other elements of the other."""
    base = _elements(20)
    draft = Drafted()
    first = draft.base(base[:12])
    second = draft.view(base[4:16], first.tensor.storage)
    draft.add(aten.mul_.Tensor, first, 2.0)
    twice = draft.add(aten.mul.Tensor, second, 3.0)
    draft.add(aten.add_.Tensor, second, twice)
    draft.add(aten.neg_.default, first)
    program = draft.program([twice])
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert compiled(program).source.count("native_call(") == 1


def test_halves_of_one_memory_may_share_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    base = _elements(20)
    draft = Drafted()
    first = draft.base(base[:10])
    second = draft.view(base[10:], first.tensor.storage)
    draft.add(aten.add_.Tensor, first, second)
    draft.add(aten.mul_.Tensor, second, first)
    program = draft.program([])
    rows = rows_counted(monkeypatch)
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert rows == [1]


def test_a_single_element_that_the_run_writes() -> None:
    draft = Drafted()
    x, factor = draft.base(_elements(9)), draft.base(torch.tensor(3.0))
    first = draft.add(aten.mul.Tensor, x, factor)
    draft.add(aten.add_.Tensor, factor, 1)
    second = draft.add(aten.mul.Tensor, x, factor)
    program = draft.program([first, second])
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 3, 4), (70_000,)])
@pytest.mark.parametrize("order", ["plain", "turned", "gaps"])
def test_layouts(shape: tuple[int, ...], order: str) -> None:
    """Dense tensors of any order of dimensions are taken; of those with gaps between all elements, small ones."""
    whole = drawn_elements(random.Random(1), torch.Size(shape).numel() * 2, torch.float32)
    plain = whole.view(*shape[:-1], -1)[..., ::2] if order == "gaps" else whole[: torch.Size(shape).numel()].view(shape)
    tensor = plain.permute(*reversed(range(len(shape)))) if order == "turned" else plain
    draft = Drafted()
    x = draft.base(tensor)
    y = draft.add(aten.mul.Tensor, x, 3.0) if order != "gaps" else draft.add(aten.mul_.Tensor, x, 3.0)
    z = draft.add(aten.neg.default, y) if order != "gaps" else draft.add(aten.neg_.default, y)
    w = draft.add(aten.add_.Tensor, z, x)
    program = draft.program([y, w])
    code = compiled(program)
    assert bool(code.executors.groups) is (order != "gaps" or 0 < torch.Size(shape).numel() <= 256)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_memory_is_taken_only_for_what_is_read_later() -> None:
    draft = Drafted()
    x = draft.base(_elements(50))
    a = draft.add(aten.mul.Tensor, x, 2.0)
    b = draft.add(aten.exp.default, a)
    c = draft.add(aten.lt.Tensor, b, x)
    d = draft.add(aten.where.self, c, a, b)
    code = compiled(draft.program([d]))
    measure_peak(code, draft.arguments())
    assert measure_peak(code, draft.arguments()).peak_bytes == 200, "one result"
    assert outcome(code, draft.arguments()) == outcome(compiled(draft.program([d]), native=False), draft.arguments())


def test_what_only_a_cluster_sees_lies_in_one_block() -> None:
    """Each product is read by a loop of its own and dies there: the next one takes its place."""
    base = _elements(5004)
    draft = Drafted()
    first = draft.base(base[:5000])
    second = draft.view(base[4:], first.tensor.storage)
    for _ in range(4):
        made = draft.add(aten.mul.Tensor, first, 0.5)
        draft.add(aten.add_.Tensor, second, made)
    program = draft.program([])
    code, plain = compiled(program), compiled(program, native=False)
    assert len(code.executors.groups) == 1
    peaks = [measure_peak(run, draft.arguments()).peak_bytes for run in (plain, plain, code, code)]
    assert peaks[3] == 20_000 <= peaks[1]
    assert outcome(code, draft.arguments()) == outcome(plain, draft.arguments())


def test_a_run_ends_where_it_would_hold_more_than_the_program() -> None:
    """Inputs are freed one by one while results are made: a call that makes all results first would hold both."""
    draft = Drafted()
    inputs = [draft.base(_elements(5000, seed)) for seed in range(6)]
    results = []
    for x in inputs:
        draft.add(aten.mul_.Tensor, x, 0.5)
        results.append(draft.add(aten.neg.default, x))
        draft.add(aten.mul_.Tensor, results[-1], 3.0)
    program = draft.program(results)
    code, plain = compiled(program), compiled(program, native=False)
    assert len(code.executors.groups) > 1
    arguments = draft.arguments()
    assert len(_held(program).executors.groups) == 1, "inputs that nobody frees"
    peaks = [measure_peak(run, draft.arguments()).peak_bytes for run in (plain, plain, code, code)]
    assert peaks[3] <= peaks[1]
    assert outcome(code, arguments) == outcome(plain, draft.arguments())


@pytest.mark.parametrize("seed", rotated(range(200), of=20))
def test_drawn_programs_take_no_more_memory(seed: int) -> None:
    draft, program = drawn_program(seed)
    code, plain = compiled(program), compiled(program, native=False)
    peaks = [measure_peak(run, draft.arguments()).peak_bytes for run in (plain, plain, code, code)]
    assert peaks[3] <= peaks[1]


def _held(program: Program) -> CompiledProgram:
    """The code of a program whose inputs somebody else holds."""
    return CompiledProgram(program, ExecutorList((NativeExecutor(), AtenExecutor())), dying=())


def test_while_a_profiler_records() -> None:
    """A cluster has a range of its own; results are the same, and so are the modules' ranges of the others."""
    draft, outputs = _adam(50)
    total = draft.add(aten.sum.default, outputs[0])
    program = draft.program([total])
    code, plain = compiled(program), compiled(program, native=False)
    expected = outcome(plain, draft.arguments())
    with torch.profiler.profile(acc_events=True) as profile:  # else torch 2.11 warns
        assert outcome(code, draft.arguments()) == expected
    names = {event.name for event in profile.events() or ()}
    assert {"cluster", "aten::sum"} <= names
    assert "aten::lerp_" not in names


def test_names_of_values_are_not_taken() -> None:
    draft = Drafted()
    names = (
        "group_ran",
        "native_call",
        "native_number",
        "pack",
        "exact",
        "may_run",
        "count_writes",
        "refuse",
    )
    values = [draft.base(_elements(5, seed)) for seed in range(len(names))]
    renamed = dict(
        zip(values, (replace(value, name=name) for value, name in zip(values, names, strict=True)), strict=True)
    )
    draft.inputs = [renamed[value] for value in draft.inputs]
    rate = draft.number(0.5)
    for value in renamed.values():
        draft.add(aten.mul_.Tensor, value, rate)
    program = draft.program(list(renamed.values()))
    code = compiled(program)
    assert code.executors.groups
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_a_note_names_the_node_that_failed() -> None:
    draft = Drafted()
    x, n = draft.base(_elements(3)), draft.number(0)
    draft.add(aten.neg_.default, x)
    ratio = draft.compute(operator.truediv, 1, n)
    draft.add(aten.mul_.Tensor, x, ratio)
    with pytest.raises(ZeroDivisionError) as found:
        compiled(draft.program([]))(draft.arguments())
    assert "while running" in "".join(found.value.__notes__)
    assert "truediv" in "".join(found.value.__notes__)


def test_a_dump_has_what_runs(tmp_path: Path) -> None:
    """The nodes of each cluster with their lines, LLVM's text and the assembly."""

    def function(x: Tensor) -> Tensor:
        return torch.tanh(x * 2 + 1).exp()

    with torch.no_grad():
        dovetail.compile(function, dump=str(tmp_path))(torch.ones(8))
    (listing,) = tmp_path.glob("*/native-*.txt")
    text = listing.read_text()
    assert "; aten.tanh" in text
    assert Path(__file__).name in text
    assert "define void @kernel" in text
    assert ".globl" in text
