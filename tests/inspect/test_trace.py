"""Traces follow the rules of the Trace Event Format, and say what the explanation says."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.analysis.categories import CATEGORIES
from dovetail.errors import NothingToExplain, ReportNotWritten
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.memory import measure_peak
from dovetail.inspect.source_paths import line_text
from dovetail.inspect.trace import measure
from dovetail.ir.program import Origin
from tests.inspect import explained
from tests.inspect.explained import Net
from tests.inspect.test_holders import Stack


def _stack() -> Explanation:
    return dovetail.explain(Stack(), torch.ones(16, 8))


# What the published description of the format asks of each phase that is used: fields, and the types of their values.
_ANY = {"name": str, "ph": str, "pid": int, "tid": int, "ts": (int, float), "args": dict}
_FIELDS: dict[str, dict[str, Any]] = {"M": _ANY, "C": _ANY, "X": {**_ANY, "cat": str, "dur": (int, float)}}
_CATEGORIES = {"module", "line", "node"}


def _events(path: Path) -> list[dict[str, Any]]:
    """The events of a file, each of them checked."""
    data = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # NaN is not JSON
    assert set(data) == {"traceEvents", "displayTimeUnit"}
    assert data["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = data["traceEvents"]
    for event in events:
        fields = _FIELDS[event["ph"]]
        assert event.keys() == fields.keys()
        assert all(isinstance(event[field], kind) for field, kind in fields.items())
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["cat"] in _CATEGORIES
        if event["ph"] == "C":
            assert event["args"]
            assert all(type(value) is int and value >= 0 for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)
    _check_order(events)
    return events


def _check_order(events: list[dict[str, Any]]) -> None:
    """Counters go forwards; slices of a thread lie in each other or follow each other."""
    tracks: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            track = event["name"] if event["ph"] == "C" else event["tid"]
            tracks[event["ph"], event["pid"], track].append(event)
    for (phase, *_), track in tracks.items():
        for before, after in itertools.pairwise(track):
            assert before["ts"] <= after["ts"]
        if phase == "X":
            _check_nesting(track)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == named


def _check_nesting(track: list[dict[str, Any]]) -> None:
    """Each slice lies in the one that is open; modules are outside, then lines, then nodes."""
    order = ["module", "line", "node"]
    open_: list[dict[str, Any]] = []
    for event in track:
        while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"] + 1e-6 and open_[-1]["cat"] != "node":
            open_.pop()
        while open_ and open_[-1]["cat"] == "node":
            assert open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"] + 1e-6
            open_.pop()
            while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"] + 1e-6:
                open_.pop()
        if open_:
            assert event["ts"] + event["dur"] <= open_[-1]["ts"] + open_[-1]["dur"] + 1e-6
            assert order.index(open_[-1]["cat"]) < order.index(event["cat"]) or event["cat"] == "module"
        open_.append(event)


def _parents(events: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Each node, with the names of the slices that it lies in."""
    slices = [event for event in events if event["ph"] == "X"]
    around = [event for event in slices if event["cat"] != "node"]
    for node in slices:
        if node["cat"] == "node":
            middle = node["ts"] + node["dur"] / 2
            yield (
                node,
                [e["name"] for e in around if e["ts"] <= middle <= e["ts"] + e["dur"] and e["tid"] == node["tid"]],
            )


@pytest.mark.parametrize("make", [explained.explained_net, explained.explained_cut, _stack], ids=lambda m: m.__name__)
def test_the_simulated_step(make: Callable[[], Explanation], tmp_path: Path) -> None:
    found = make()
    found.trace(tmp_path / "step.json")
    events = _events(tmp_path / "step.json")
    maps = [found.step, *(program.memory for program in found.programs)]
    for pid, memory in enumerate(maps, 1):
        mine = [event for event in events if event["pid"] == pid]
        slices = [event for event in mine if event["ph"] == "X" and event["cat"] == "node"]
        assert [event["args"]["call"] for event in slices] == list(memory.nodes)
        assert [event["ts"] for event in slices] == [1000 * place for place in range(len(memory.nodes))]
        levels = [event["args"]["bytes"] for event in mine if event["name"] == "live bytes"]
        assert tuple(levels[:-1]) == memory.live_bytes
        assert max(levels) == memory.peak_bytes
        kinds: dict[str, dict[float, int]] = defaultdict(dict)
        for event in mine:
            if event["name"].endswith(", bytes"):
                kinds[event["name"]][event["ts"]] = event["args"]["bytes"]
        assert {name.removesuffix(", bytes") for name in kinds} <= set(CATEGORIES)
        level = dict.fromkeys(kinds, 0)
        for node, live in enumerate(memory.live_bytes):
            level = {name: changes.get(1000 * node, level[name]) for name, changes in kinds.items()}
            assert sum(level.values()) == live + memory.resident_bytes


def test_nodes_lie_in_their_lines_and_modules(tmp_path: Path) -> None:
    found = _stack()
    found.trace(tmp_path / "step.json")
    events = [event for event in _events(tmp_path / "step.json") if event["pid"] == 1]
    nodes = [node for program in found.programs for node in program.nodes]
    for (event, names), node in zip(_parents(events), nodes, strict=True):
        parts = node.origin.module.split(".") if node.origin.module else []
        modules = [".".join(parts[: at + 1]) for at in range(len(parts))]
        assert names == [*modules, line_text(node.origin)]
        assert event["name"] == node.operator
    turn = 1000 * found.step.backward_from
    forward = [event for event in events if event["name"] == "blocks.1" and event["ts"] < turn]
    assert len(forward) == 1, "forward goes through it once"


@pytest.mark.parametrize("name", ['</script><b>"\\', "\ud800", "\x00\u2028", "é漢😀", "a..b", "."])
def test_any_name_is_written(name: str, tmp_path: Path) -> None:
    found = explained.explained_write()
    origin = Origin(name, 1, name, name)
    programs = tuple(
        replace(p, name=name, nodes=tuple(replace(n, operator=name, origin=origin) for n in p.nodes))
        for p in found.programs
    )
    replace(found, name=name, programs=programs).trace(tmp_path / "step.json")
    events = _events(tmp_path / "step.json")
    assert sum(event["name"] == name and event.get("cat") == "node" for event in events) == len(programs[0].nodes)


def test_inference_is_one_process(tmp_path: Path) -> None:
    explained.explained_write().trace(tmp_path / "step.json")
    events = _events(tmp_path / "step.json")
    assert {event["pid"] for event in events} == {1}


def test_a_measured_step(tmp_path: Path) -> None:
    net, x = Net(), torch.ones(256, 8)

    def run(compiled: Any) -> Any:
        net.zero_grad(set_to_none=True)
        compiled(x).backward()

    trace = measure(net, x, run=run)
    found = dovetail.explain(net, x)
    assert [node.call for node in trace.nodes] == [node.call for program in found.programs for node in program.nodes]
    assert [node.is_backward for node in trace.nodes].index(True) == len(found.programs[0].nodes)
    assert all(node.duration_us > 0 for node in trace.nodes)
    starts = [node.start_us for node in trace.nodes]
    assert starts == sorted(starts)
    assert starts[0] == 0
    trace.write(tmp_path / "measured.json")
    events = _events(tmp_path / "measured.json")
    assert sum(event["ph"] == "X" and event["cat"] == "node" for event in events) == len(trace.nodes)
    assert {event["tid"] for event in events if event["ph"] == "X"} == {1, 2}
    end = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    within = [event for event in events if event["ph"] == "C" and event["ts"] <= end]
    assert len(within) > len(trace.nodes) / 2, "the clocks of the allocator and of the nodes agree"


def test_the_measured_allocator_is_what_measure_peak_says() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() @ x).sum()

    x = torch.ones(64, 64)
    compiled = dovetail.compile(f, (x,))
    trace = measure(compiled, x)
    assert torch.equal(trace.result, f(x))
    assert trace.peak_bytes == measure_peak(compiled, x).peak_bytes == dovetail.explain(compiled, x).peak_bytes
    assert [node.operator for node in trace.nodes] == ["aten.exp.default", "aten.mm.default", "aten.sum.default"]
    assert trace.nodes[0].origin.startswith(f"{__file__}:")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(NothingToExplain, match="no node ran"):
        measure(lambda x: x.sin(), torch.ones(2), run=lambda _: None)
    trace = measure(lambda x: x.sin(), torch.ones(2))
    with pytest.raises(ReportNotWritten, match="No such file"):
        trace.write(tmp_path / "missing" / "trace.json")
