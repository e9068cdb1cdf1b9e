"""An explanation as one HTML file: styles, script and data inside, nothing fetched.

Tables are written here, so that they can be read, searched and printed without the script; the script draws the memory
maps, filters rows, and shows differences when they are opened. Whatever comes from the user is escaped: text by
`html.escape`, data as JSON without `<`, `>` and `&`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from dovetail.inspect.decisions import kinds_in
from dovetail.inspect.explanation_text import origin_text
from dovetail.inspect.report_rows import Decision, MemoryMap, NodeRow, ProgramReport, StepRow, StorageRow
from dovetail.ir.program import Origin

if TYPE_CHECKING:
    from dovetail.inspect.explanation import Explanation

_FILES = ("page.css", "page.js")
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_MEANING = {
    "saved": "Values that forward hands to backward. Bytes are those that would be freed otherwise.",
    "recomputed": "Nodes that backward runs again because their results were not kept.",
    "in place": "Results that need no memory of their own. Bytes are those that are not allocated.",
    "copied": "Copies that are left, and why. Bytes are moved, and nothing new is computed.",
    "donated": "Inputs that the caller gave away. Bytes are those of results in their memory.",
}


def render_page(explanation: Explanation) -> str:
    """The whole page."""
    folder = resources.files("dovetail.inspect")
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in _FILES}
    parts["title"] = escape(explanation.name)
    parts["tiles"] = "".join(_tiles(explanation))
    parts["maps"] = "".join(_maps(explanation))
    parts["decisions"] = "".join(_decisions(explanation))
    parts["steps"] = "".join(_steps(explanation.steps))
    parts["programs"] = "".join("".join(_program(p, explanation.lines)) for p in explanation.programs)
    parts["data"] = _script_data(explanation)
    pieces = (folder / "page.html").read_text(encoding="utf-8").split("@@")  # in turn text and names of parts
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def byte_text(count: int) -> str:
    """Bytes for people: `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    amount, units = count / 1024, list(_UNITS)
    while amount >= 1000 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}"


# --- head -----------------------------------------------------------------------------------------------------------


def _tiles(explanation: Explanation) -> Iterator[str]:
    yield _tile("predicted peak", explanation.peak_bytes, "of the whole step, without inputs", "memory", "tile main")
    if len(explanation.programs) > 1:
        for program in explanation.programs:
            yield _tile(f"{program.kind} alone", program.peak_bytes, f"{len(program.nodes):,} nodes", "programs")
    for kind in kinds_in(explanation.decisions):
        rows = [row for row in explanation.decisions if row.kind == kind]
        yield _tile(kind, sum(row.bytes for row in rows), f"{len(rows):,} rows", _anchor(kind))


def _tile(label: str, bytes_: int, note: str, link: str, style: str = "tile") -> str:
    return (
        f'<a class="{style}" href="#{link}" title="{bytes_:,} bytes"><span class="label">{escape(label)}</span>'
        f'<span class="amount">{byte_text(bytes_)}</span><span class="note">{escape(note)}</span></a>'
    )


# --- memory ---------------------------------------------------------------------------------------------------------


def _maps_of(explanation: Explanation) -> dict[str, MemoryMap]:
    """The maps that are shown, by their titles."""
    found = {program.kind: program.memory for program in explanation.programs}
    return {"whole step": explanation.step, **found} if len(found) > 1 else found


def _maps(explanation: Explanation) -> Iterator[str]:
    maps = _maps_of(explanation)
    yield '<div class="tabs" role="tablist">'
    for place, title in enumerate(maps):
        chosen = "false" if place else "true"
        yield f'<button role="tab" aria-selected="{chosen}" data-map="{place}">{title}</button>'
    yield "</div>"
    for place, (title, memory) in enumerate(maps.items()):
        yield f'<div class="map" id="map-{place}"{" hidden" if place else ""}>'
        yield f'<canvas tabindex="0" role="img" aria-label="live bytes of {title}, node by node"></canvas>'
        yield '<div class="readout" aria-live="polite"></div>'
        yield f"<h3>Largest storages at the peak: {memory.peak_bytes:,} bytes at node {memory.peak_node}</h3>"
        yield _table(_STORAGE_HEAD, _top_rows(memory, explanation.lines)) + "</div>"


_STORAGE_HEAD = ("#bytes", "#share", "name", "made by", "tensor", "role", "your line")


def _top_rows(memory: MemoryMap, lines: Mapping[str, str]) -> Iterator[str]:
    alive = memory.alive(memory.peak_node)
    top = memory.top()
    for row in top:
        yield _row(_storage_cells(row, memory.peak_bytes, lines))
    rest = sum(row.bytes for row in alive[len(top) :])
    if rest:
        share = _share(rest, memory.peak_bytes)
        yield _row([_number(rest), share, f"<td>{len(alive) - len(top):,} more</td>", *["<td></td>"] * 4])


def _storage_cells(row: StorageRow, total: int, lines: Mapping[str, str]) -> list[str]:
    return [
        _number(row.bytes),
        _share(row.bytes, total),
        _code(row.name),
        _code(row.operator),
        _code(row.meta),
        f'<td><span class="role {row.role}">{row.role}</span></td>',
        _line(row.origin, lines),
    ]


def _share(part: int, total: int) -> str:
    percent = 100 * part / total if total else 0.0
    return f'<td class="number bar" style="--part:{percent:.1f}%">{percent:.1f}%</td>'


# --- decisions ------------------------------------------------------------------------------------------------------


def _decisions(explanation: Explanation) -> Iterator[str]:
    for kind in kinds_in(explanation.decisions):
        rows = [row for row in explanation.decisions if row.kind == kind]
        total = sum(row.bytes for row in rows)
        yield f'<details class="decisions" id="{_anchor(kind)}"{" open" if rows else ""}>'
        yield f'<summary><b>{kind}</b> {len(rows):,} <span class="quiet">{total:,} bytes</span></summary>'
        yield f'<p class="quiet">{_MEANING[kind]}</p>'
        ordered = sorted(rows, key=lambda row: -row.bytes)
        if rows:
            yield _table(_DECISION_HEAD, (_row(_decision_cells(row, explanation.lines)) for row in ordered))
        yield "</details>"


_DECISION_HEAD = ("#bytes", "name", "operator", "reason", "why", "program", "your line")


def _decision_cells(row: Decision, lines: Mapping[str, str]) -> list[str]:
    return [
        _number(row.bytes),
        _code(row.name),
        _code(row.operator),
        f'<td><span class="reason">{escape(row.code)}</span></td>',
        f"<td>{escape(row.why)}</td>",
        f'<td class="quiet">{escape(row.program)}</td>',
        _line(row.origin, lines),
    ]


def _anchor(kind: str) -> str:
    return kind.replace(" ", "-")


# --- steps ----------------------------------------------------------------------------------------------------------


def _steps(steps: Sequence[StepRow]) -> Iterator[str]:
    longest = max((row.time_us for row in steps), default=0) or 1
    highest = max((row.peak_bytes for row in steps), default=0) or 1
    program = ""
    yield "<table class='steps'><thead><tr><th>step</th><th class='number'>nodes</th><th class='number'>time</th>"
    yield "<th class='number'>peak after it</th><th>what it did</th></tr></thead><tbody>"
    for place, row in enumerate(steps):
        if row.program != program:
            program = row.program
            yield f'<tr class="group"><th colspan="5">{escape(program)}</th></tr>'
        time = f"{row.time_us / 1000:,.1f} ms" if row.time_us >= 0 else ""
        changed = row.nodes_before != row.nodes_after
        nodes = f"{row.nodes_before:,} → {row.nodes_after:,}" if changed else f"{row.nodes_after:,}"
        did = escape(row.did)
        if row.reason:
            did += f' <span class="reason dropped">dropped</span> {escape(row.reason)}'
        yield f'<tr class="step"><td><b>{escape(row.name)}</b></td><td class="number">{nodes}</td>'
        yield f'<td class="number bar" style="--part:{100 * max(row.time_us, 0) / longest:.1f}%">{time}</td>'
        yield f'<td class="number bar" style="--part:{100 * row.peak_bytes / highest:.1f}%">{row.peak_bytes:,}</td>'
        yield f"<td>{did}{_difference(place, row.diff)}</td></tr>"
    yield "</tbody></table>"


def _difference(place: int, diff: str) -> str:
    if not diff:
        return ""
    lines = diff.splitlines()
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    return (
        f'<details class="diff" data-step="{place}"><summary>difference <ins>+{added:,}</ins>'
        f" <del>&minus;{removed:,}</del></summary><pre></pre></details>"
    )


# --- programs -------------------------------------------------------------------------------------------------------

_CHUNK = 100  # rows that a browser lays out at once, when they come into view
_NODE_HEAD = ("#", "name", "call", "result", "#makes", "#live", "storages", "your line")


def _program(program: ProgramReport, lines: Mapping[str, str]) -> Iterator[str]:
    executors = sorted({node.executor for node in program.nodes if node.executor})
    ran_by = f", run by {escape(', '.join(executors))}" if executors else ""
    yield f'<section class="program" id="program-{program.kind}"><h3>{program.kind} '
    yield f'<span class="quiet">{escape(program.name)}, {len(program.nodes):,} nodes{ran_by}</span></h3>'
    yield '<p class="filter"><input type="search" aria-label="filter nodes" spellcheck="false"'
    yield ' placeholder="filter: mm, layers.3, op:aten.add, name:relu, module:attention, storage:12, line:model.py:40">'
    yield f'<span class="count quiet">{len(program.nodes):,} of {len(program.nodes):,}</span></p>'
    yield f'<div class="scroll"><div class="head">{_table(_NODE_HEAD, (), "nodes")}</div>'
    for start in range(0, len(program.nodes), _CHUNK):
        rows = [_node(row, program.peak_bytes, lines) for row in program.nodes[start : start + _CHUNK]]
        yield f'<div class="chunk" style="--rows:{len(rows)}"><table class="nodes"><tbody>{"".join(rows)}'
        yield "</tbody></table></div>"
    yield "</div></section>"


def _node(row: NodeRow, peak: int, lines: Mapping[str, str]) -> str:
    operator, bracket, arguments = row.call.partition("(")
    part = 100 * row.live_bytes / peak if peak else 0.0
    storages = " ".join(map(str, row.storages))
    again = ' <span class="role recomputed">again</span>' if row.recomputed else ""
    cells = [
        f'<td class="number quiet">{row.index}</td>',
        _code(row.name),
        f'<td class="call"><code><b>{escape(operator)}</b>{escape(bracket + arguments)}</code>{again}</td>',
        _code(row.meta),
        f'<td class="number">{row.makes:,}</td>' if row.makes else "<td></td>",
        f'<td class="number bar" style="--part:{part:.1f}%">{row.live_bytes:,}</td>',
        f'<td class="quiet">{storages}</td>',
        _line(row.origin, lines),
    ]
    found = {"op": operator, "name": row.name, "module": row.origin.module, "storage": storages}
    marks = "".join(f' data-{key}="{escape(text.lower())}"' for key, text in found.items())
    return f"<tr{marks}>{''.join(cells)}</tr>"


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[str], style: str = "") -> str:
    """A table. head: columns of numbers begin with `#`."""
    cells = [
        f'<th class="number">{escape(name[1:] or name)}</th>' if name.startswith("#") else f"<th>{escape(name)}</th>"
        for name in head
    ]
    kind = f' class="{style}"' if style else ""
    return f"<table{kind}><thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _number(number: int) -> str:
    return f'<td class="number" title="{byte_text(number)}">{number:,}</td>'


def _code(text: str) -> str:
    return f"<td><code>{escape(text)}</code></td>"


def _line(origin: Origin, lines: Mapping[str, str]) -> str:
    if not origin.file:
        return f"<td>{escape(origin.module)}</td>"
    source = lines.get(f"{origin.file}:{origin.line}", "")
    shown = f'<code class="source">{escape(source)}</code>' if source else ""
    return f'<td class="line" title="{escape(str(origin))}">{escape(origin_text(origin))}{shown}</td>'


# --- data of the script ---------------------------------------------------------------------------------------------


def _script_data(explanation: Explanation) -> str:
    data = {
        "maps": [
            {
                "storages": [
                    [r.storage, r.name, r.operator, r.meta, r.bytes, r.first, r.last, r.role, *_place(r, explanation)]
                    for r in memory.storages
                ],
                "live": memory.live_bytes,
                "peak": memory.peak_bytes,
                "peakNode": memory.peak_node,
                "nodes": memory.nodes,
                "backwardFrom": memory.backward_from,
            }
            for memory in _maps_of(explanation).values()
        ],
        "diffs": {place: row.diff for place, row in enumerate(explanation.steps) if row.diff},
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _place(row: StorageRow, explanation: Explanation) -> tuple[str, str]:
    """The user's line of a storage: where, and its text."""
    source = explanation.lines.get(f"{row.origin.file}:{row.origin.line}", "") if row.origin.file else ""
    return origin_text(row.origin), source
