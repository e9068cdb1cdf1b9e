"""Explanations: rows add up, agree with a scan of the program, name the user's lines, and change nothing."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dovetail
from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.one_run import whole_step
from dovetail.errors import (
    BadOptionValue,
    CaptureFailed,
    DataDependentControlFlow,
    NothingToExplain,
    ReportNotWritten,
)
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.report_rows import MemoryMap
from dovetail.ir.program import Program, values_in
from dovetail.partition.choose import residual_bytes
from dovetail.partition.split import Split
from dovetail.pipeline.compile_trace import CompileTrace
from tests.inspect import explained
from tests.inspect.explained import Net, many_cheap, smooth

_ROOT = Path(__file__).parents[2]
_GOLDEN = _ROOT / "tests" / "data" / "golden"
_EXPLAINED = [explained.explained_net, explained.explained_cut, explained.explained_write, explained.explained_copy]


@pytest.fixture(params=_EXPLAINED, ids=lambda make: make.__name__)
def explanation(request: pytest.FixtureRequest) -> Explanation:
    """Each of the explained programs."""
    make: Callable[[], Explanation] = request.param
    return make()


def _halves(target: Callable[..., Any], *args: Any, **options: Any) -> tuple[Program, Program]:
    trace = CompileTrace()
    dovetail.compile(target, **options).with_options(compile_trace=trace).prepare(*args)
    forward, backward = (trace.lowerings[0].half(which) for which in ("forward", "backward"))
    assert forward is not None
    assert backward is not None
    return forward, backward


def _scan(program: Program) -> list[dict[int, int]]:
    """Per node the storages that are alive and their bytes, found by looking at the whole program for each."""
    inputs = {v.tensor.storage for v in program.inputs if v.is_tensor}
    kept = {v.tensor.storage for v in values_in(program.outputs) if v.is_tensor}
    touched = [
        {v.tensor.storage for v in (*node.results(), *node.operands()) if v.is_tensor} - inputs
        for node in program.nodes
    ]
    sizes: dict[int, int] = {}
    for node in program.nodes:
        for value in node.results():
            if value.is_tensor:
                meta = value.tensor
                made = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)  # type: ignore[arg-type]
                sizes.setdefault(meta.storage, made.untyped_storage().nbytes())
    levels = []
    for index in range(len(program.nodes)):
        before, after = set().union(*touched[: index + 1]), set().union(*touched[index:])
        levels.append({storage: sizes[storage] for storage in before & (after | kept)})
    return levels


def _agrees(memory: MemoryMap, program: Program) -> None:
    levels = _scan(program)
    assert memory.live_bytes == tuple(sum(level.values()) for level in levels)
    for index, level in enumerate(levels):
        assert {row.storage: row.bytes for row in memory.alive(index)} == level
    assert memory.peak_bytes == max(memory.live_bytes) == simulate_peak(program).peak_bytes
    largest = sorted(levels[memory.peak_node].values(), reverse=True)[:10]
    assert [row.bytes for row in memory.top()] == largest


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_every_level_and_the_top_ten_are_those_of_a_scan(partition: str) -> None:
    cases: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (Net(), (torch.ones(32, 8),)),
        (many_cheap, (torch.ones(8, 8, requires_grad=True),)),
        (smooth, (torch.ones(4, 4), torch.ones(4, 4))),
    ]
    for target, args in cases:
        found = dovetail.explain(dovetail.compile(target, partition=partition), *args)
        forward, backward = _halves(target, *args, partition=partition)
        _agrees(found.programs[0].memory, forward)
        if len(found.programs) > 1:
            _agrees(found.programs[1].memory, backward)
            _agrees(found.step, whole_step(forward, backward))


def test_rows_add_up_to_the_simulated_peak(explanation: Explanation) -> None:
    maps = [explanation.step, *(program.memory for program in explanation.programs)]
    for memory in maps:
        assert sum(row.bytes for row in memory.alive(memory.peak_node)) == memory.peak_bytes
        assert memory.live_bytes[memory.peak_node] == memory.peak_bytes == max(memory.live_bytes)
    for program in explanation.programs:
        assert [node.live_bytes for node in program.nodes] == list(program.memory.live_bytes)
        assert sum(node.makes for node in program.nodes) == sum(row.bytes for row in program.memory.storages)
        last = [row for row in explanation.steps if row.program == program.name][-1]
        assert last.peak_bytes == program.peak_bytes
        assert last.nodes_after == len(program.nodes)


def test_the_step_holds_what_is_saved() -> None:
    net = Net()
    found = dovetail.explain(net, torch.ones(32, 8))
    forward, backward = _halves(net, torch.ones(32, 8))
    saved = sum(row.bytes for row in found.decisions if row.kind == "saved")
    assert saved == residual_bytes(Split(forward, backward, ()), {}) > 0
    assert saved == sum(row.bytes for row in found.step.storages if row.role == "saved")
    assert found.peak_bytes >= max(program.peak_bytes for program in found.programs)
    assert found.step.backward_from == len(forward.nodes)


def test_every_row_of_user_code_names_its_line(explanation: Explanation) -> None:
    rows = [row for row in explanation.decisions if row.operator != "input"]
    nodes = [node for program in explanation.programs for node in program.nodes]
    origins = [row.origin for row in (*rows, *nodes, *explanation.step.storages)]
    assert rows
    assert all(origin.file == explained.__file__ and origin.line > 0 for origin in origins)
    source = Path(explained.__file__).read_text().splitlines()
    for place, line in explanation.lines.items():
        assert source[int(place.rpartition(":")[2]) - 1].strip() == line


def test_what_is_computed_again_has_its_reason() -> None:
    cut = explained.explained_cut()
    again = [row for row in cut.decisions if row.kind == "recomputed"]
    assert {row.code for row in again} == {"CHEAPEST-CUT"}
    marked = [node.name for program in cut.programs for node in program.nodes if node.recomputed]
    assert [row.name for row in again] == [name for name in marked if name]
    made = {row.storage for row in cut.programs[1].memory.storages if row.role == "recomputed"}
    assert len(made) == sum(row.bytes > 0 for row in again)

    def region(x: Tensor) -> Tensor:
        out: Tensor = checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False)
        return out.sum()

    asked = dovetail.explain(region, torch.ones(4, requires_grad=True))
    rows = [row for row in asked.decisions if row.kind == "recomputed"]
    assert [(row.name, row.code) for row in rows] == [("sin_1", "REPEATS-FORWARD"), ("exp_1", "REPEATS-FORWARD")]
    assert not [row for row in explained.explained_net().decisions if row.kind == "recomputed"]


def test_why_values_are_saved_where_a_cut_is_made() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        h = torch.nn.functional.dropout(x @ w, 0.5)
        for _ in range(4):
            h = (h.sin() * 2).tanh()
        return (h @ w).sum()

    compiled = dovetail.compile(f, partition="min_cut")
    found = dovetail.explain(compiled, torch.ones(64, 64), torch.ones(64, 64, requires_grad=True))
    codes = {row.name: row.code for row in found.decisions if row.kind == "saved"}
    assert "IS-INPUT" in codes.values()
    assert {"CANNOT-RUN-AGAIN", "NOT-CHEAP", "CHEAPEST-CUT"} & set(codes.values())
    assert "READ-BY-BACKWARD" not in codes.values()


def test_copies_have_a_reason_and_places_do_not_cost() -> None:
    copied = [row for row in explained.explained_copy().decisions if row.kind == "copied"]
    assert [(row.name, row.code, row.bytes) for row in copied] == [("index_fill", "TWO-TENSORS", 5 * 7 * 4)]
    written = [row for row in explained.explained_write().decisions if row.kind == "in place"]
    assert [row.name for row in written] == ["relu", "lerp", "copy_to_layout", "arg_0"]
    assert all(row.code == "IN-PLACE" for row in written)


def test_bytes_in_place_follow_the_sizes_of_the_call() -> None:
    compiled = dovetail.compile(lambda x: (x * 2).relu(), dynamic=True)
    found = dovetail.explain(compiled, torch.ones(5, 7))
    assert [row.bytes for row in found.decisions if row.kind == "in place"] == [5 * 7 * 4]
    assert found.peak_bytes == 5 * 7 * 4


def test_a_dropped_pass_says_why() -> None:
    def stretched(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Merging the twins keeps the first one alive where the peak is."""
        first = x.exp().sum()
        other = x.sin().cos().sum()
        return first, other, x.exp().prod()

    found = dovetail.explain(stretched, torch.ones(2, 2))
    (row,) = [row for row in found.steps if row.name == "common_subexpressions"]
    assert row.reason == "PEAK-RISES: 52 > 36 simulated bytes"
    assert (row.nodes_after, row.peak_bytes, row.diff) == (row.nodes_before, 36, "")
    assert "dropped, PEAK-RISES: 52 > 36 simulated bytes" in " ".join(str(found).split())
    cut = dovetail.explain(dovetail.compile(Net(), partition="min_cut"), torch.ones(32, 8))
    (row, *_) = [row for row in cut.steps if row.name == "partition"]
    assert row.reason.startswith("PEAK-RISES")
    assert "default split kept" in row.did


def test_differences_lead_from_program_to_program() -> None:
    found = explained.explained_write()
    (row,) = [row for row in found.steps if row.name == "reinplace"]
    added = [line for line in row.diff.splitlines() if line.startswith("+")]
    assert "+relu = aten.relu_.default(mm)" in added
    assert [row.diff for row in found.steps if row.name == "dead_code"] == [""]


def test_text_has_times_where_they_are_wanted() -> None:
    found = explained.explained_write()
    assert re.search(r"\d ms$", str(found), re.MULTILINE)
    assert not re.search(r"\d ms$", found.text(times=False), re.MULTILINE)


def test_json_has_every_row(explanation: Explanation) -> None:
    data = json.loads(explanation.to_json())
    assert data["peak_bytes"] == explanation.peak_bytes
    assert len(data["decisions"]) == len(explanation.decisions)
    assert [len(program["nodes"]) for program in data["programs"]] == [len(p.nodes) for p in explanation.programs]
    assert data["steps"][0]["name"] == "recorded"


def test_nothing_is_changed() -> None:
    net = Net()
    x = torch.randn(32, 8, requires_grad=True)
    net(x).backward()
    kept = copy.deepcopy(net.state_dict())
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    values = x.detach().clone()
    state, versions = torch.get_rng_state(), [p._version for p in (x, *net.parameters(), *net.buffers())]
    identities = [id(p) for p in (*net.parameters(), *net.buffers())]
    found = dovetail.explain(net, x)
    assert found.programs[1].kind == "backward"
    assert all(torch.equal(kept[name], value) for name, value in net.state_dict().items())
    assert {n for n, p in net.named_parameters() if p.grad is not None} == set(gradients)
    assert all(torch.equal(gradients[name], p.grad) for name, p in net.named_parameters() if p.grad is not None)
    assert torch.equal(torch.get_rng_state(), state)
    assert [p._version for p in (x, *net.parameters(), *net.buffers())] == versions
    assert [id(p) for p in (*net.parameters(), *net.buffers())] == identities
    assert torch.equal(x, values)
    assert net.training


def test_keyword_arguments_and_what_was_compiled_before() -> None:
    def f(x: Tensor, *, scale: float, twice: bool = False) -> Tensor:
        return x * scale * 2 if twice else x * scale

    compiled = dovetail.compile(f)
    assert len(dovetail.explain(compiled, torch.ones(3), scale=2.0).programs[0].nodes) == 1
    assert len(dovetail.explain(compiled, torch.ones(3), scale=2.0, twice=True).programs[0].nodes) == 2
    assert compiled.graphs == ()


def test_a_program_without_nodes() -> None:
    found = dovetail.explain(lambda x: x, torch.ones(3))
    assert (found.peak_bytes, found.step.top(), found.decisions) == (0, (), ())
    assert "nothing is allocated" in str(found)


def test_gradients_of_several_outputs_show_the_likely_backward() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.sin()
        return h.sum(), h

    found = dovetail.explain(f, torch.ones(3, requires_grad=True))
    assert [program.name for program in found.programs] == ["f_forward", "f_likely_backward"]
    assert {row.program for row in found.steps} == {"f", "f_forward", "f_likely", "f_likely_backward"}


def test_a_training_step_is_explained() -> None:
    net, trace = Net(), CompileTrace()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x)
        loss.backward()
        optimizer.step()
        return loss

    compiled = dovetail.compile_step(step, compile_trace=trace)
    with pytest.raises(NothingToExplain, match="nothing was captured yet"):
        dovetail.explain(compiled)
    for _ in range(3):
        compiled(torch.ones(32, 8))
    with pytest.raises(NothingToExplain, match="explain reports the calls that ran, not another call"):
        dovetail.explain(compiled, torch.ones(32, 8))
    now = dovetail.explain(compiled)
    assert now.peak_bytes == compiled.explain().peak_bytes
    assert now.eager is not None
    assert {row.kind for row in now.decisions} == {"saved", "in place"}
    assert now.steps[0].name == "recorded"
    assert "optimizer state" in str(now)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureFailed, match="missing 1 required positional argument"):
        dovetail.explain(Net())
    with pytest.raises(DataDependentControlFlow, match=r"test_explain\.py"):
        dovetail.explain(lambda x: x if x.sum() > 0 else -x, torch.ones(3))
    with pytest.raises(BadOptionValue, match="a function, a module"):
        dovetail.explain(3)  # type: ignore[arg-type]
    found = explained.explained_write()
    for write in (found.html, found.trace):
        with pytest.raises(ReportNotWritten, match="No such file"):
            write(tmp_path / "missing" / "report")
        with pytest.raises(ReportNotWritten, match="directory"):
            write(tmp_path)
        with pytest.raises(ReportNotWritten, match="null byte"):
            write("a\0b")
        with pytest.raises(BadOptionValue, match="reports are written to a file"):
            write(None)  # type: ignore[arg-type]


def test_a_module_of_modules_names_the_modules() -> None:
    found = dovetail.explain(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4))
    assert {node.origin.module for node in found.programs[0].nodes} >= {"0", "1"}
