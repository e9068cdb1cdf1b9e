"""Run a compiled function once, and trace how long each node took and what was allocated meanwhile.

    measure(model, x, run=lambda compiled: compiled(x).sum().backward()).write("step.json")

A special executor comes before all others: it claims every node, lets `aten` produce the call, and times it. So the
usual program runs, in the same order, with two clock reads per node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from dovetail.errors import NothingToExplain
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.frontends.function import CompiledFunction, compile
from dovetail.inspect.chrome_trace import Span, counter_event, nested_events, process_names
from dovetail.inspect.memory_map import call_text, operator_name
from dovetail.inspect.written_file import write_text
from dovetail.ir.program import Node, Origin, Phase
from dovetail.ir.text import Names
from dovetail.torch_compat.profiler import AllocatorEvent, record_allocator_events

_PID = 1
_THREADS = {Phase.FORWARD: 1, Phase.BACKWARD: 2}


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One run of one node. start_us: after the first node began; both in microseconds of wall clock.

    module, file, line: of the code that it comes from, "" and 0 where they are not known.
    """

    operator: str
    call: str
    origin: str
    is_backward: bool
    start_us: float
    duration_us: float
    module: str = ""
    file: str = ""
    line: int = 0

    def span(self, earliest_us: float) -> Span:
        """Its slice in a trace that begins at `earliest_us`."""
        start = self.start_us - earliest_us
        place = Origin(self.file, self.line, "", self.module)
        facts: dict[str, object] = {"call": self.call, "origin": self.origin}
        return Span(self.operator, place, start, start + self.duration_us, facts)


@dataclass(frozen=True, slots=True)
class MeasuredTrace:
    """nodes: in the order in which they ran. allocator: live bytes above those at the start, by time in microseconds.

    Memory that was live before and is freed meanwhile is not seen. result: what the measured call returned.
    """

    nodes: tuple[NodeTime, ...]
    allocator: tuple[tuple[float, int], ...]
    result: Any

    @property
    def peak_bytes(self) -> int:
        """The highest level of the allocator."""
        return max((level for _, level in self.allocator), default=0)

    def events(self) -> list[dict[str, Any]]:
        """Events of the Trace Event Format."""
        names = {tid: f"{phase.value}: module > line > operator" for phase, tid in _THREADS.items()}
        events = process_names(_PID, "measured", names)
        earliest = min([0.0, *(at for at, _ in self.allocator)])  # times are not negative in a trace
        for phase, tid in _THREADS.items():
            mine = [node for node in self.nodes if node.is_backward is (phase is Phase.BACKWARD)]
            events += nested_events((node.span(earliest) for node in mine), _PID, tid)
        events += [counter_event("allocator", _PID, at - earliest, bytes=level) for at, level in self.allocator]
        return events

    def write(self, path: str | PathLike[str]) -> None:
        """Write the events as a file for Perfetto or chrome://tracing.

        Raises: ReportNotWritten.
        """
        write_text(path, json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}))


def measure(
    target: Callable[..., Any],
    *args: Any,
    run: Callable[[CompiledFunction], Any] | None = None,
) -> MeasuredTrace:
    """Compile a function or module, call it twice, and trace the second call.

    Args:
        target: what `dovetail.compile` takes, or what it returned: then with the options that were given there.
        args: what it is called with.
        run: calls what was compiled, where that is more than `compiled(*args)`: backward as well, say.
    Returns: a `MeasuredTrace`; what the two calls change (gradients, buffers, written inputs) is changed.
    Raises: DovetailError when the target cannot be compiled; NothingToExplain when no node of it ran.
    """
    clock = _Clock()
    compiled = target if isinstance(target, CompiledFunction) else compile(target)
    timed = compiled.with_options(executors=(_TimedExecutor(clock),))

    def call() -> Any:
        return timed(*args) if run is None else run(timed)

    record_allocator_events(call)  # compiles everything, the code that is used while a profiler runs included
    clock.spans.clear()
    offset_ns = time.time_ns() - time.perf_counter_ns()  # the profiler's times are those of the calendar
    result, blocks = record_allocator_events(call)
    if not clock.spans:
        name = str(getattr(target, "__name__", type(target).__name__))
        raise NothingToExplain(what=name, reason="no node ran", hint="call the compiled function in `run`")
    origin_ns = clock.spans[0][1]
    levels = _levels(blocks, offset_ns + origin_ns)
    return MeasuredTrace(tuple(clock.node_time(span, origin_ns) for span in clock.spans), levels, result)


def _levels(blocks: list[AllocatorEvent], start_ns: int) -> tuple[tuple[float, int], ...]:
    live = 0
    taken: dict[int, int] = {}
    levels = []
    for block in blocks:
        if block.size_bytes > 0:
            taken[block.address] = block.size_bytes
            live += block.size_bytes
        elif block.address in taken:
            live -= taken.pop(block.address)
        else:
            continue
        levels.append(((block.time_ns - start_ns) / 1000, live))
    return tuple(levels)


class _Clock:
    """spans: number of the node, start and end in nanoseconds."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.spans: list[tuple[int, int, int]] = []
        self._numbers: dict[Node, int] = {}

    def number(self, node: Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def end(self, number: int, start_ns: int, result: Any) -> Any:
        self.spans.append((number, start_ns, time.perf_counter_ns()))
        return result

    def node_time(self, span: tuple[int, int, int], origin_ns: int) -> NodeTime:
        number, start, end = span
        node = self.nodes[number]
        return NodeTime(
            operator=operator_name(node),
            call=call_text(Names(), node),
            origin=str(node.origin),
            is_backward=node.phase is Phase.BACKWARD,
            start_us=(start - origin_ns) / 1000,
            duration_us=(end - start) / 1000,
            module=node.origin.module,
            file=node.origin.file,
            line=node.origin.line,
        )


class _TimedExecutor:
    """Claims every node and has its call timed: the start is read before the operands are, the end after the call."""

    name = "timed"

    def __init__(self, clock: _Clock) -> None:
        self._inner = AtenExecutor()
        self._clock = clock
        self._begin, self._end = time.perf_counter_ns, clock.end

    def claim(self, node: Node) -> bool:
        """Always."""
        return True

    def call(self, names: Names, node: Node) -> str:
        """The call of the node, inside a call that notes when it began and ended."""
        begin, end = names.constant(self._begin, "_begin"), names.constant(self._end, "_end")
        return f"{end}({self._clock.number(node)}, {begin}(), {self._inner.call(names, node)})"
