"""An explanation as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.inspect.decisions import kinds_in
from dovetail.inspect.report_rows import Decision, MemoryMap, StepRow
from dovetail.ir.program import Origin

if TYPE_CHECKING:
    from dovetail.inspect.explanation import Explanation

_LONGEST = 76
_TOP = 10
_ROWS = 20
_WHAT_BYTES_ARE = {
    "saved": "bytes held from forward to backward",
    "recomputed": "bytes made again in backward",
    "in place": "bytes that are not allocated",
    "copied": "bytes that are moved and nothing new is computed",
    "donated": "bytes of results in memory that was given away",
}


def render_text(explanation: Explanation, *, times: bool = True) -> str:
    """The text. times: whether to say how long each step took."""
    lines = [f"{explanation.name}: predicted peak {_number(explanation.peak_bytes)} bytes, without inputs"]
    for program in explanation.programs:
        level = _number(program.peak_bytes)
        lines.append(f"  {program.kind:<10} {len(program.nodes):>5} nodes, {level:>14} bytes by itself")
    lines += ["", "steps", *_steps(explanation.steps, times)]
    for kind in kinds_in(explanation.decisions):
        lines += _decisions(kind, [row for row in explanation.decisions if row.kind == kind])
    for program in explanation.programs:
        lines += ["", f"largest storages at the peak of {program.kind}", *_top(program.memory)]
    if len(explanation.programs) > 1:
        lines += ["", "largest storages at the peak of the whole step", *_top(explanation.step)]
    return "\n".join(line.rstrip() for line in lines)


def _steps(rows: Sequence[StepRow], times: bool) -> Iterator[str]:
    program = ""
    table = []
    for row in rows:
        label = row.program if row.program != program else ""
        program = row.program
        did = f"dropped, {row.reason}" if row.reason and row.name != "partition" else row.did
        time = f"{row.time_us / 1000:.1f} ms" if row.time_us >= 0 else ""
        cells = [label, row.name, f"{row.nodes_before} -> {row.nodes_after}", _number(row.peak_bytes), time, did]
        table.append(cells if times else [*cells[:4], did])
    head = ["program", "step", "nodes", "peak bytes", "time", "what it did"]
    yield from _table([head if times else [*head[:4], head[-1]], *table], right={2, 3, 4} if times else {2, 3})


def _decisions(kind: str, rows: list[Decision]) -> Iterator[str]:
    total = sum(row.bytes for row in rows)
    yield ""
    yield f"{kind}: {len(rows)}, {_number(total)} {_WHAT_BYTES_ARE[kind]}" if rows else f"{kind}: nothing"
    inputs = [row for row in rows if row.code == "IS-INPUT"]
    others = [row for row in rows if row.code != "IS-INPUT"]
    shown = sorted(others, key=lambda row: -row.bytes)[:_ROWS]
    cells = [[_number(r.bytes), r.name, r.operator, r.code, r.why, origin_text(r.origin)] for r in shown]
    if len(others) > len(shown):
        rest = total - sum(row.bytes for row in shown)
        cells.append([_number(rest), f"{len(others) - len(shown)} more", "", "", "", ""])
    yield from _table(cells, right={0})
    if inputs:
        yield f"  and {len(inputs)} inputs, which their owner keeps: {_shortened(', '.join(r.name for r in inputs))}"


def _top(memory: MemoryMap) -> Iterator[str]:
    if memory.peak_node < 0 or not memory.storages:
        yield "  nothing is made"
        return
    alive = memory.alive(memory.peak_node)
    rows = [[_number(r.bytes), r.name, r.operator, r.meta, r.role, origin_text(r.origin)] for r in alive[:_TOP]]
    rest = alive[_TOP:]
    if rest:
        rows.append([_number(sum(row.bytes for row in rest)), f"{len(rest)} more", "", "", "", ""])
    rows.append([_number(memory.peak_bytes), f"at node {memory.peak_node}", memory.nodes[memory.peak_node], "", "", ""])
    yield from _table(rows, right={0})


def _table(rows: Sequence[Sequence[str]], right: Iterable[int]) -> Iterator[str]:
    """Aligned columns. right: numbers of the columns that are aligned on the right."""
    cut = [[*map(_shortened, row[:-1]), row[-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    aligned = set(right)
    for row in cut:
        cells = [c.rjust(w) if i in aligned else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  " + "  ".join(cells)


def origin_text(origin: Origin) -> str:
    """A line of the user's, short: relative to the working folder where it lies in it."""
    if not origin.file:
        return origin.module
    path = Path(origin.file)
    try:
        path = path.relative_to(Path.cwd())
    except ValueError:
        path = Path(origin.file)
    return f"{path}:{origin.line}" + (f" ({origin.module})" if origin.module else "")


def _number(number: int) -> str:
    return f"{number:,}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
