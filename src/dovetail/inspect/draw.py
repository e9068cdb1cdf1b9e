"""Draw a program: as SVG, as text, or as a `.dot` graph; nothing but Python is needed.

SVG and text show one row for each input and node, in the order of execution, and one lane for each storage that is
alive (see `inspect.lanes`):

    o        x                                  f32[4, 4]    o  memory that begins here
    | o      w                                  f32[4, 4]
    '-'-o    mm       aten.mm.default(x, w)     f32[4, 4]    '  read for the last time
    *        relu     aten.relu_.default(mm)    f32[4, 4]    *  written where it is
    '        return   relu

In the SVG storages have colours, modules are bands, and a row says where it comes from when it is pointed at.
"""

from __future__ import annotations

import colorsys
import os
import re
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

from torch import fx

from dovetail.inspect.lanes import Lanes, Life, Row, lay_out
from dovetail.inspect.written_file import write_text
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Program, Value, values_in
from dovetail.ir.text import Names, plain_call
from dovetail.ops.facts import written_values

Format = Literal["svg", "text", "dot"]
SUFFIXES: dict[str, Format] = {".svg": "svg", ".txt": "text", ".dot": "dot", ".gv": "dot"}

_ROW = 18
_LANE = 11
_LEFT = 14
_LETTER = 7.3
_LONGEST_CALL = 90
# What XML 1.0 has no way to say.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw(
    program: Program | fx.GraphModule,
    *sample_inputs: object,
    to: str | os.PathLike[str] | None = None,
    format: str = "",
) -> str:
    """Draw a program, or a graph module of ATen operators, and say it as a string.

    sample_inputs: as for `dovetail.passes.reinplace`, where placeholders have no `meta["val"]`. to: a file to write as
    well. format: "svg", "text" or "dot"; by default what the name of the file ends in (.svg, .txt, .dot), or "text".
    Raises: ValueError for another format; ReportNotWritten for a file that cannot be written; what `reinplace` raises
    for a graph module that cannot be read.
    """
    wanted = format or (SUFFIXES.get(Path(to).suffix.lower(), "") if to is not None else "text")
    if wanted not in ("svg", "text", "dot"):
        what = f"format {format!r}" if format else f"a name that ends in {Path(to or '').suffix!r}"
        raise ValueError(f"{what} is not known: give format='svg', 'text' or 'dot', or a name in .svg, .txt or .dot")
    if not isinstance(program, Program):
        program = lift(program, sample_inputs).program
    made = {"svg": to_svg, "text": to_text, "dot": to_dot}[wanted](program)
    if to is not None:
        write_text(to, made)
    return made


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(program: Program) -> str:
    """The program as lanes and lines of text."""
    lanes = lay_out(program)
    alive: set[int] = set()
    labels = _labels(program, lanes)
    names = max((len(name) for name, _, _ in labels), default=0)
    calls = min(max((len(call) for _, call, _ in labels), default=0), _LONGEST_CALL)
    lines: list[str] = []
    for row, (name, call, what) in zip(lanes.rows, labels, strict=True):
        alive.update(row.makes)
        marks = "".join(_cell(row, lane, alive) for lane in range(lanes.width))
        lines.append(f"{marks}   {name:{names}}   {_shortened(call):{calls}}   {what}".rstrip())
        alive.difference_update(row.ends)
    return "\n".join(lines) + "\n"


def _cell(row: Row, lane: int, alive: set[int]) -> str:
    if lane in row.makes:
        mark = "o"
    elif lane in row.writes:
        mark = "*"
    elif lane in row.ends and lane in row.reads:
        mark = "'"
    else:
        mark = "|" if lane in alive else " "
    touched = (*row.reads, *row.makes, *row.shows)
    is_between = row.node is not None and touched and min(touched) <= lane < max(touched)
    return mark + ("-" if is_between else " ")


# --- SVG ------------------------------------------------------------------------------------------------------------


def to_svg(program: Program) -> str:
    """The program as an SVG document."""
    lanes = lay_out(program)
    labels = _labels(program, lanes)
    left = _LEFT + lanes.width * _LANE + 12
    names, calls = ([_shortened(label[part]) for label in labels] for part in (0, 1))
    at_call = left + (max(map(len, names), default=0) + 2) * _LETTER
    at_what = at_call + (max(map(len, calls), default=0) + 2) * _LETTER
    width = at_what + (max((len(label[2]) for label in labels), default=0) + 2) * _LETTER + 8
    height = len(lanes.rows) * _ROW + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="12">',
        f"<title>{_xml(program.name)}</title>",
        "<style>.row:hover .back{fill:#dbe7ff}.back{fill:transparent}.what{fill:#667}.module{fill:#889}</style>",
        f'<rect width="{width:.0f}" height="{height}" fill="#fff"/>',
        *_bands(lanes, width),
        *(_life(life) for life in lanes.lives),
    ]
    colors = _colors(lanes)
    for at, (row, label) in enumerate(zip(lanes.rows, labels, strict=True)):
        parts.append(_svg_row(at, row, label, (left, at_call, at_what, width), colors[at]))
    return "\n".join([*parts, "</svg>", ""])


def _svg_row(
    at: int, row: Row, label: tuple[str, str, str], places: tuple[float, float, float, float], colors: dict[int, str]
) -> str:
    left, at_call, at_what, width = places
    y = _y(at)
    touched = (*row.reads, *row.makes, *row.shows, *row.writes)
    marks: list[str] = []
    if row.node is not None and touched:
        marks.append(f'<path d="M{_x(min(touched))} {y}H{_x(max(touched))}" stroke="#99a" stroke-width="1"/>')
    for lane in dict.fromkeys((*row.reads, *row.shows)):
        marks.append(f'<circle cx="{_x(lane)}" cy="{y}" r="2.2" fill="#fff" stroke="{colors[lane]}"/>')
    for lane in row.writes:
        marks.append(f'<rect x="{_x(lane) - 4}" y="{y - 4}" width="8" height="8" fill="{colors[lane]}"/>')
    for lane in row.makes:
        marks.append(f'<circle cx="{_x(lane)}" cy="{y}" r="4" fill="{colors[lane]}"/>')
    origin = str(row.node.origin) if row.node is not None else ""
    hint = "\n".join(filter(None, (" ".join(filter(None, label)), origin, "backward" if row.is_backward else "")))
    slant = ' font-style="italic"' if row.is_backward else ""
    name, call, what = map(_xml, (_shortened(label[0]), _shortened(label[1]), label[2]))
    return (
        f'<g class="row"><title>{_xml(hint)}</title>'
        f'<rect class="back" x="{left - 6}" y="{y - _ROW / 2}" width="{width - left:.0f}" height="{_ROW}"/>'
        f"{''.join(marks)}"
        f'<text x="{left}" y="{y + 4}"{slant}>{name}</text>'
        f'<text x="{at_call:.0f}" y="{y + 4}">{call}</text>'
        f'<text class="what" x="{at_what:.0f}" y="{y + 4}">{what}</text></g>'
    )


def _bands(lanes: Lanes, width: float) -> list[str]:
    """A band behind the rows of each module, with its name."""
    bands: list[tuple[str, int, int]] = []
    for at, row in enumerate(lanes.rows):
        if row.node is None:
            continue
        if bands and bands[-1][0] == row.module:
            bands[-1] = (row.module, bands[-1][1], at)
        else:
            bands.append((row.module, at, at))
    found: list[str] = []
    for number, (module, first, last) in enumerate(bands):
        if module:
            top, tall = _y(first) - _ROW / 2, (last - first + 1) * _ROW
            shade = "#f2f5fa" if number % 2 else "#f7f3ec"
            found.append(f'<rect x="0" y="{top}" width="{width:.0f}" height="{tall}" fill="{shade}"/>')
            end = width - 6
            found.append(f'<text class="module" x="{end:.0f}" y="{top + 13}" text-anchor="end">{_xml(module)}</text>')
    return found


def _life(life: Life) -> str:
    dash = ' stroke-dasharray="4 2"' if life.is_input else ""
    bottom = _y(life.last) + (6 if life.is_returned else 0)
    return (
        f'<path d="M{_x(life.lane)} {_y(life.first)}V{bottom}" stroke="{_color(life.storage)}" stroke-width="2"'
        f' fill="none"{dash}><title>storage {life.storage}</title></path>'
    )


def _colors(lanes: Lanes) -> list[dict[int, str]]:
    """For each row, the colour of each lane that it touches."""
    colors: list[dict[int, str]] = [{} for _ in lanes.rows]
    holders: dict[int, list[Life]] = {}
    for life in lanes.lives:
        holders.setdefault(life.lane, []).append(life)
    for lives in holders.values():
        lives.sort(key=lambda life: life.first)
    places = dict.fromkeys(holders, 0)
    for at, row in enumerate(lanes.rows):
        for lane in (*row.makes, *row.shows, *row.reads, *row.writes):
            while holders[lane][places[lane]].last < at:
                places[lane] += 1
            colors[at][lane] = _color(holders[lane][places[lane]].storage)
    return colors


def _color(storage: int) -> str:
    """Neighbouring numbers get colours that are far apart."""
    red, green, blue = colorsys.hls_to_rgb(storage * 0.618034 % 1.0, 0.45, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _x(lane: int) -> int:
    return _LEFT + lane * _LANE


def _y(row: int) -> int:
    return 16 + row * _ROW


def _xml(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\ufffd", text))


# --- dot ------------------------------------------------------------------------------------------------------------


def to_dot(program: Program) -> str:
    """The program in the language of Graphviz: a cluster for each module, a colour for each storage."""
    lines = [f"digraph {_quoted(program.name)} {{", "  node [shape=box, style=filled, fontname=monospace];"]
    number: dict[Value, str] = {}
    for index, value in enumerate(program.inputs):
        number[value] = f"i{index}"
        lines.append(f"  i{index} [label={_quoted(_described(value))}, shape=ellipse{_fill(value)}];")
    clusters: dict[str, list[str]] = {}
    edges: list[str] = []
    names = Names()
    for index, node in enumerate(program.nodes):
        written = written_values(node)
        results = node.results()
        label = "\n".join((plain_call(names, node).partition("(")[0], *map(_described, results)))
        first = next((value for value in results if value.is_tensor), None)
        clusters.setdefault(node.origin.module, []).append(f"n{index} [label={_quoted(label)}{_fill(first)}];")
        for value in dict.fromkeys(node.operands()):
            edges.append(f"  {number[value]} -> n{index}{' [style=bold]' if value in written else ''};")
        number.update(dict.fromkeys(results, f"n{index}"))
    for place, (module, nodes) in enumerate(clusters.items()):
        if module:
            lines.append(f"  subgraph cluster_{place} {{ label={_quoted(module)};")
            lines += [f"    {node}" for node in nodes] + ["  }"]
        else:
            lines += [f"  {node}" for node in nodes]
    lines += [*edges, "  out [label=return, shape=ellipse];"]
    lines += [f"  {number[value]} -> out;" for value in dict.fromkeys(values_in(program.outputs))]
    return "\n".join([*lines, "}", ""])


def _fill(value: Value | None) -> str:
    return f', fillcolor="{_color(value.tensor.storage)}55"' if value is not None and value.is_tensor else ""


def _quoted(text: str) -> str:
    text = _UNPRINTABLE.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


# --- labels ---------------------------------------------------------------------------------------------------------


def _labels(program: Program, lanes: Lanes) -> list[tuple[str, str, str]]:
    """For each row names, the call, and what it gives."""
    names = Names()
    return [_label(program, row, names) for row in lanes.rows]


def _label(program: Program, row: Row, names: Names) -> tuple[str, str, str]:
    if row.input is not None:
        return row.input.name, "", str(row.input.meta)
    if row.node is None:
        return "return", ", ".join(value.name for value in values_in(program.outputs)) or "nothing", ""
    results = row.node.results()
    call = plain_call(names, row.node).removeprefix("torch.ops.")
    return ", ".join(value.name for value in results), call, ", ".join(str(value.meta) for value in results)


def _described(value: Value) -> str:
    return f"{value.name}: {value.meta}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_CALL else text[: _LONGEST_CALL - 3] + "..."
