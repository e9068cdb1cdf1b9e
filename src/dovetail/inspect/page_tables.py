"""Below the first screen: memory over time, the steps of the compilation, every node, and what the words mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from dovetail.inspect import page_text as text
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.report_rows import MemoryMap, NodeRow, ProgramReport, StepRow, StorageRow
from dovetail.inspect.units import Unit
from dovetail.pipeline.compile_trace import LIKELY

# --- memory over time -----------------------------------------------------------------------------------------------


def maps_of(explanation: ExplanationData) -> dict[str, MemoryMap]:
    """The maps that are shown, by their titles."""
    found = {program.kind: program.memory for program in explanation.programs}
    return {"whole step": explanation.step, **found} if len(found) > 1 else found


def live(explanation: ExplanationData, unit: Unit) -> Iterator[str]:
    """A map for the whole step and for each program."""
    maps = maps_of(explanation)
    yield "<h2>Memory over time</h2>"
    yield '<p class="quiet">Live storages during each operator, without those that existed before. Point at a storage, '
    yield "or press the arrow keys.</p>"
    yield '<div class="tabs" role="tablist">'
    for place, title in enumerate(maps):
        chosen = "false" if place else "true"
        yield f'<button role="tab" aria-selected="{chosen}" data-map="{place}">{title}</button>'
    yield "</div>"
    for place, (title, memory) in enumerate(maps.items()):
        yield f'<div class="map" id="map-{place}"{" hidden" if place else ""}>'
        yield f'<canvas tabindex="0" role="img" aria-label="live bytes of {title}, node by node"></canvas>'
        yield '<div class="readout" aria-live="polite"></div>'
        level = escape(unit.text(memory.peak_bytes))
        yield f"<details><summary>The largest at its peak: {level} at node {memory.peak_node}</summary>"
        head = (f"#{unit.name}", "#share", "name", "operator", "tensor", "what it is", "line")
        rows = _top_rows(memory, explanation.lines, unit)
        yield f'<div class="scroll">{text.table(head, rows)}</div></details></div>'


def _top_rows(memory: MemoryMap, lines: Mapping[str, str], unit: Unit) -> Iterator[str]:
    alive = memory.alive(memory.peak_node)
    top = memory.top()
    for row in top:
        yield text.row(_storage_cells(row, memory.peak_bytes, lines, unit))
    rest = sum(row.bytes for row in alive[len(top) :])
    if rest:
        left = f"<td>{len(alive) - len(top):,} more</td>"
        yield text.row([text.number(rest, unit), text.share(rest, memory.peak_bytes), left, *["<td></td>"] * 4])


def _storage_cells(row: StorageRow, total: int, lines: Mapping[str, str], unit: Unit) -> list[str]:
    return [
        text.number(row.bytes, unit),
        text.share(row.bytes, total),
        text.code(row.name),
        text.code(row.operator),
        text.code(row.meta),
        f"<td>{text.swatch(row.category)}</td>",
        text.line(row.origin, lines),
    ]


# --- steps ----------------------------------------------------------------------------------------------------------


def steps(rows: Sequence[StepRow], unit: Unit) -> Iterator[str]:
    """The steps of the compilation, with what each changed."""
    longest = max((row.time_us for row in rows), default=0) or 1
    highest = max((row.peak_bytes for row in rows), default=0) or 1
    spent = sum(max(row.time_us, 0) for row in rows)
    told = f"{len(rows)} steps, {spent / 1000:,.0f} ms"
    yield f'<details><summary><h2>How it was compiled</h2> <span class="quiet">{told}</span></summary>'
    yield "<div class='scroll'><table class='steps'><thead><tr><th>step</th><th class='number'>nodes</th>"
    yield f"<th class='number'>time</th><th class='number'>peak after it, {unit.name}</th><th>what it did</th></tr>"
    yield "</thead><tbody>"
    program = ""
    for place, row in enumerate(rows):
        if row.program != program:
            program = row.program
            aside = ' <span class="quiet">for the most common gradients</span>' if LIKELY in program else ""
            yield f'<tr class="group"><th colspan="5">{escape(program)}{aside}</th></tr>'
        yield _step(place, row, longest, highest, unit)
    yield "</tbody></table></div></details>"


def _step(place: int, row: StepRow, longest: int, highest: int, unit: Unit) -> str:
    time = f"{row.time_us / 1000:,.1f} ms" if row.time_us >= 0 else ""
    changed = row.nodes_before != row.nodes_after
    nodes = f"{row.nodes_before:,} → {row.nodes_after:,}" if changed else f"{row.nodes_after:,}"
    did = escape(row.did)
    if row.reason:
        did += f' <span class="reason dropped">dropped</span> {escape(row.reason)}'
    peak = f'title="{row.peak_bytes:,} bytes">{escape(unit.number(row.peak_bytes))}'
    return (
        f'<tr class="step"><td><b>{escape(row.name)}</b></td><td class="number">{nodes}</td>'
        f'<td class="number bar" data-part="{100 * max(row.time_us, 0) / longest:.1f}">{time}</td>'
        f'<td class="number bar" data-part="{100 * row.peak_bytes / highest:.1f}" {peak}</td>'
        f"<td>{did}{_difference(place, row.diff)}</td></tr>"
    )


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
_FILTER = "filter: mm, layers.3, op:aten.add, name:relu, module:attention, storage:12, line:model.py:40"


def programs(explanation: ExplanationData, unit: Unit) -> Iterator[str]:
    """Every node, in boxes that are closed at first."""
    yield "<h2>Programs</h2>"
    for program in explanation.programs:
        yield from _program(program, explanation.lines, unit)


def _program(program: ProgramReport, lines: Mapping[str, str], unit: Unit) -> Iterator[str]:
    executors = sorted({node.executor for node in program.nodes if node.executor})
    ran_by = f", run by {escape(', '.join(executors))}" if executors else ""
    yield f'<details class="program" id="program-{text.anchor(program.kind)}"><summary><h3>{program.kind}</h3> '
    yield f'<span class="quiet">{escape(program.name)}, {len(program.nodes):,} nodes{ran_by}, peak by itself '
    yield f"{escape(unit.text(program.peak_bytes))}</span></summary>"
    yield '<p class="filter"><input type="search" aria-label="filter nodes" spellcheck="false"'
    count = f"{len(program.nodes):,} of {len(program.nodes):,}"
    yield f' placeholder="{_FILTER}"><span class="count quiet">{count}</span></p>'
    head = ("#", "name", "call", "result", f"#makes, {unit.name}", f"#live, {unit.name}", "storages", "line")
    yield f'<div class="scroll tall"><div class="head">{text.table(head, (), "nodes")}</div>'
    for start in range(0, len(program.nodes), _CHUNK):
        rows = [_node(row, program.peak_bytes, lines, unit) for row in program.nodes[start : start + _CHUNK]]
        yield f'<div class="chunk" data-rows="{len(rows)}"><table class="nodes"><tbody>{"".join(rows)}'
        yield "</tbody></table></div>"
    yield "</div></details>"


def _node(row: NodeRow, peak: int, lines: Mapping[str, str], unit: Unit) -> str:
    operator, bracket, arguments = row.call.partition("(")
    part = 100 * row.live_bytes / peak if peak else 0.0
    storages = " ".join(map(str, row.storages))
    live = escape(unit.number(row.live_bytes))
    again = ' <span class="again">again</span>' if row.recomputed else ""
    cells = [
        f'<td class="number quiet">{row.index}</td>',
        text.code(row.name),
        f'<td class="call"><code><b>{escape(operator)}</b>{escape(bracket + arguments)}</code>{again}</td>',
        text.code(row.meta),
        text.number(row.makes, unit) if row.makes else "<td></td>",
        f'<td class="number bar" data-part="{part:.1f}" title="{row.live_bytes:,} bytes">{live}</td>',
        f'<td class="quiet">{storages}</td>',
        text.line(row.origin, lines),
    ]
    found = {"op": operator, "name": row.name, "module": row.origin.module, "storage": storages}
    marks = "".join(f' data-{key}="{escape(value.lower())}"' for key, value in found.items())
    return f"<tr{marks}>{''.join(cells)}</tr>"


# --- words ----------------------------------------------------------------------------------------------------------

_WORDS = {
    "weights": "parameters of modules.",
    "buffers": "tensors of modules that are not parameters: running means, masks.",
    "optimizer state": "what an optimizer keeps for each parameter; known if the whole step is compiled.",
    "inputs": "arguments of the call, and numbers that it reads.",
    "constants": "tensors that the code closes over, and weights that were folded into a frozen program.",
    "gradients": "gradients that backward leaves for parameters, or that an optimizer reads.",
    "saved for backward": "computed by forward, read by backward; inputs that backward reads keep their category.",
    "recomputed": "computed a second time by backward, because saving costs more.",
    "outputs": "what the call returns.",
    "temporaries": "everything else: gone before the program ends.",
}
_LIKELY_MEANS = (
    "backward depends on which results get a gradient. One version is made for gradients of all of them; where one "
    "loss is likely to be all, a second version is made for that, and its name ends in _likely. Forward is shared, "
    "and this page shows the backward that a single loss runs."
)


def words(explanation: ExplanationData, unit: Unit) -> Iterator[str]:
    """What the words on the page mean."""
    yield "<details><summary><h2>Words</h2></summary><dl>"
    if unit.size > 1:
        yield f"<dt>{escape(unit.name)}</dt><dd>{unit.size:,} bytes; all amounts of memory are in this unit.</dd>"
    if any(LIKELY in row.program for row in explanation.steps):
        yield f"<dt>_likely</dt><dd>{escape(_LIKELY_MEANS)}</dd>"
    known = {row.category for memory in maps_of(explanation).values() for row in (*memory.storages, *memory.residents)}
    for category, meaning in _WORDS.items():
        if category in known:
            yield f"<dt>{text.swatch(category)}</dt><dd>{escape(meaning)}</dd>"
    yield "</dl></details>"
