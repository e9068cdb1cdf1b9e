"""An explanation as events of the Trace Event Format, which Perfetto and chrome://tracing open.

Each program is a process of its own. Nothing has run, so time stands for the order: node k is a slice from k to k + 1
milliseconds, and the counters are the simulated live bytes while it runs. Source: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail.inspect.report_rows import MemoryMap

if TYPE_CHECKING:
    from dovetail.inspect.explanation import Explanation

NODE_US = 1000
THREAD = 1
_ROLES = ("saved", "returned", "recomputed", "temporary")


def trace_events(explanation: Explanation) -> list[dict[str, Any]]:
    """Metadata, slices and counters; times in microseconds."""
    maps = {program.name: program.memory for program in explanation.programs}
    if len(maps) > 1:
        maps = {f"{explanation.name}, the whole step": explanation.step, **maps}
    events: list[dict[str, Any]] = []
    for pid, (name, memory) in enumerate(maps.items(), 1):
        events += process_names(pid, f"{name} (simulated, 1 ms per node)", {THREAD: "nodes"})
        events += _nodes(memory, pid)
    return events


def process_names(pid: int, name: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    """Events that name a process and its threads. threads: names by number."""
    events = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}]
    for tid, thread in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": thread}})
    return events


def slice_event(name: str, pid: int, tid: int, start_us: float, duration_us: float, **facts: object) -> dict[str, Any]:
    """Something that takes time. facts: what is shown when it is chosen."""
    place = {"ph": "X", "cat": "node", "pid": pid, "tid": tid, "ts": start_us, "dur": duration_us}
    return {"name": name, **place, "args": facts}


def counter_event(name: str, pid: int, at_us: float, **series: int) -> dict[str, Any]:
    """The values of a counter from a time on."""
    return {"name": name, "ph": "C", "pid": pid, "tid": 0, "ts": at_us, "args": series}


def _nodes(memory: MemoryMap, pid: int) -> Iterator[dict[str, Any]]:
    changes = [dict.fromkeys(_ROLES, 0) for _ in range(len(memory.nodes) + 1)]
    for row in memory.storages:
        changes[row.first][row.role] += row.bytes
        changes[row.last + 1][row.role] -= row.bytes
    by_role = dict.fromkeys(_ROLES, 0)
    for index, call in enumerate(memory.nodes):
        at = index * NODE_US
        by_role = {role: by_role[role] + changes[index][role] for role in _ROLES}
        live = memory.live_bytes[index]
        yield slice_event(call.partition("(")[0], pid, THREAD, at, NODE_US, call=call, node=index, live_bytes=live)
        yield counter_event("live bytes", pid, at, bytes=live)
        yield counter_event("live bytes by role", pid, at, **by_role)
    end = len(memory.nodes) * NODE_US
    yield counter_event("live bytes", pid, end, bytes=sum(row.bytes for row in memory.storages if row.is_returned))
