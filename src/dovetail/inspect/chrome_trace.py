"""An explanation as events of the Trace Event Format, which Perfetto and chrome://tracing open.

Each program is a process of its own. Nothing has run, so time stands for the order: node k is a slice from k to k + 1
milliseconds. Slices nest: the parts of the module path, the line of code in it, the operator; what follows each other
in one module, or comes from one line of it, is one slice. Counters are the simulated live bytes, and those of each
category (weights, saved for backward, ...). Source: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.analysis.categories import CATEGORIES
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.report_rows import MemoryMap, NodeRow
from dovetail.inspect.source_paths import line_text
from dovetail.ir.program import Origin

NODE_US = 1000
THREAD = 1


@dataclass(frozen=True, slots=True)
class Span:
    """One run of one node, and where it belongs. facts: what is shown when it is chosen."""

    name: str
    origin: Origin
    start_us: float
    end_us: float
    facts: dict[str, object]


def trace_events(explanation: ExplanationData) -> list[dict[str, Any]]:
    """Metadata, slices and counters; times in microseconds."""
    nodes = [node for program in explanation.programs for node in program.nodes]
    programs = [(program.name, program.memory, program.nodes) for program in explanation.programs]
    if len(programs) > 1:
        programs = [(f"{explanation.name}, the whole step", explanation.step, tuple(nodes)), *programs]
    events: list[dict[str, Any]] = []
    for pid, (name, memory, rows) in enumerate(programs, 1):
        events += process_names(pid, f"{name} (simulated, 1 ms per node)", {THREAD: "module > line > operator"})
        events += nested_events(_spans(rows, memory), pid, THREAD, explanation.lines)
        events += _counters(memory, pid)
    return events


def process_names(pid: int, name: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    """Events that name a process and its threads. threads: names by number."""
    events = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}]
    for tid, thread in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": thread}})
    return events


def nested_events(spans: Iterable[Span], pid: int, tid: int, lines: Any = None) -> list[dict[str, Any]]:
    """Slices of nodes in slices of their lines in slices of their modules, parents before what is in them.

    spans: one after the other, in order of time. lines: source text by `file:line`, to be shown with a line.
    """
    events: list[dict[str, Any]] = []
    open_: list[tuple[tuple[str, str], dict[str, Any]]] = []
    for span in spans:
        path = _path(span.origin)
        kept = 0
        while kept < min(len(open_), len(path)) and open_[kept][0] == path[kept]:
            kept += 1
        del open_[kept:]
        for key in path[kept:]:
            facts = _facts_of(key, span.origin, lines or {})
            event = slice_event(key[1], pid, tid, span.start_us, 0.0, cat=key[0], **facts)
            events.append(event)
            open_.append((key, event))
        for _, event in open_:
            event["dur"] = span.end_us - event["ts"]
        duration = span.end_us - span.start_us
        events.append(slice_event(span.name, pid, tid, span.start_us, duration, cat="node", **span.facts))
    return events


def slice_event(
    name: str, pid: int, tid: int, start_us: float, duration_us: float, *, cat: str, **facts: object
) -> dict[str, Any]:
    """Something that takes time. cat: "module", "line" or "node". facts: what is shown when it is chosen."""
    place = {"ph": "X", "cat": cat, "pid": pid, "tid": tid, "ts": start_us, "dur": duration_us}
    return {"name": name, **place, "args": facts}


def counter_event(name: str, pid: int, at_us: float, **series: int) -> dict[str, Any]:
    """The values of a counter from a time on."""
    return {"name": name, "ph": "C", "pid": pid, "tid": 0, "ts": at_us, "args": series}


def _path(origin: Origin) -> list[tuple[str, str]]:
    """What a slice of a node lies in, from the outside: parts of the module's path, and the line."""
    parts = origin.module.split(".") if origin.module else []
    path = [("module", ".".join(parts[: at + 1])) for at in range(len(parts))]
    return [*path, ("line", line_text(origin))] if origin.file else path


def _facts_of(key: tuple[str, str], origin: Origin, lines: Any) -> dict[str, object]:
    if key[0] == "module":
        return {"module": key[1]}
    return {"code": lines.get(f"{origin.file}:{origin.line}", ""), "function": origin.function, "file": origin.file}


def _spans(rows: Sequence[NodeRow], memory: MemoryMap) -> Iterator[Span]:
    for index, (row, call) in enumerate(zip(rows, memory.nodes, strict=True)):
        facts: dict[str, object] = {"call": call, "node": index, "live_bytes": memory.live_bytes[index]}
        yield Span(row.operator, row.origin, index * NODE_US, (index + 1) * NODE_US, facts)


def _counters(memory: MemoryMap, pid: int) -> Iterator[dict[str, Any]]:
    """The level of all that the program makes; for each category, with what was there before."""
    count = len(memory.nodes)
    changes: dict[str, list[int]] = {}
    residents = dict.fromkeys(CATEGORIES, 0)
    for row in memory.residents:
        residents[row.category] += row.bytes
    for row in memory.storages:
        turn = row.later_from if row.first < row.later_from <= row.last else row.last + 1
        for category, first, end in ((row.category, row.first, turn), (row.later, turn, row.last + 1)):
            if first < end:
                change = changes.setdefault(category, [0] * (count + 1))
                change[first] += row.bytes
                change[end] -= row.bytes
    for index, live in enumerate(memory.live_bytes):
        yield counter_event("live bytes", pid, index * NODE_US, bytes=live)
    left = sum(row.bytes for row in memory.storages if row.is_returned)
    yield counter_event("live bytes", pid, count * NODE_US, bytes=left)
    for category in CATEGORIES:
        if category in changes or residents[category]:
            yield from _levels(category, changes.get(category, [0] * (count + 1)), residents[category], pid)


def _levels(category: str, changes: Sequence[int], level: int, pid: int) -> Iterator[dict[str, Any]]:
    """The counter of one category, at each node where it changes."""
    for index, change in enumerate(changes[:-1]):
        level += change
        if change or not index:
            yield counter_event(f"{category}, bytes", pid, index * NODE_US, bytes=level)
