"""Traces follow the rules of the Trace Event Format, and say what the explanation says."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import NothingToExplain, ReportNotWritten
from dovetail.inspect.memory import measure_peak
from dovetail.inspect.trace import measure
from tests.inspect import explained
from tests.inspect.explained import Net


def _events(path: Path) -> list[dict[str, Any]]:
    """The events of a file, each of them checked."""
    data = json.loads(path.read_text())
    assert set(data) == {"traceEvents", "displayTimeUnit"}
    assert data["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = data["traceEvents"]
    for event in events:
        assert event["ph"] in {"M", "X", "C"}
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)
    _check_order(events)
    return events


def _check_order(events: list[dict[str, Any]]) -> None:
    """Counters go forwards; slices of a thread follow each other."""
    tracks: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            track = event["name"] if event["ph"] == "C" else event["tid"]
            tracks[event["ph"], event["pid"], track].append(event)
    for (phase, *_), track in tracks.items():
        for before, after in itertools.pairwise(track):
            assert before["ts"] + (before["dur"] if phase == "X" else 0) <= after["ts"] + 1e-6
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == named


def test_the_simulated_step(tmp_path: Path) -> None:
    found = explained.explained_cut()
    found.trace(tmp_path / "step.json")
    events = _events(tmp_path / "step.json")
    maps = [found.step, *(program.memory for program in found.programs)]
    for pid, memory in enumerate(maps, 1):
        mine = [event for event in events if event["pid"] == pid]
        slices = [event for event in mine if event["ph"] == "X"]
        assert [event["args"]["call"] for event in slices] == list(memory.nodes)
        assert [event["ts"] for event in slices] == [1000 * place for place in range(len(memory.nodes))]
        levels = [event["args"]["bytes"] for event in mine if event["name"] == "live bytes"]
        assert tuple(levels[:-1]) == memory.live_bytes
        assert max(levels) == memory.peak_bytes
        roles = [event["args"] for event in mine if event["name"] == "live bytes by role"]
        assert tuple(sum(role.values()) for role in roles) == memory.live_bytes


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
    assert sum(event["ph"] == "X" for event in events) == len(trace.nodes)
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
