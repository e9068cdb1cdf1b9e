"""Draw a program: as SVG, as text, or as a `.dot` graph; nothing but Python is needed.

SVG and text show one row for each input and node, in the order of execution, and one lane for each storage that is
alive (see `inspect.lanes`):

    o        x                                  f32[4, 4]    o  memory that begins here
    | o      w                                  f32[4, 4]
    '-'-o    mm       aten.mm.default(x, w)     f32[4, 4]    '  read for the last time
    *        relu     aten.relu_.default(mm)    f32[4, 4]    *  written where it is
    '        return   relu

In the SVG storages have colours and lanes as wide as their bytes say (`inspect.draw_svg`), modules are bands, and a row
says where it comes from when it is pointed at. With a `level`, modules are rows (`inspect.collapse`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import fx

from dovetail.errors import BadOptionValue
from dovetail.inspect.collapse import Drawn, Part, collapse, whole
from dovetail.inspect.draw_labels import UNPRINTABLE, color, described, labels_of, shortened
from dovetail.inspect.draw_svg import to_svg
from dovetail.inspect.lanes import Row, lay_out
from dovetail.inspect.written_file import write_text
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Program, Value, values_in
from dovetail.ir.sizes import Number
from dovetail.ir.text import Names, plain_call
from dovetail.ops.facts import written_values

Format = Literal["svg", "text", "dot"]
SUFFIXES: dict[str, Format] = {".svg": "svg", ".txt": "text", ".dot": "dot", ".gv": "dot"}


def draw(
    program: Program | fx.GraphModule,
    *sample_inputs: object,
    to: str | os.PathLike[str] | None = None,
    format: str = "",
    level: int | None = None,
    hints: Mapping[str, Number] | None = None,
) -> str:
    """Draw a program, or a graph module of ATen operators, and say it as a string.

    sample_inputs: as for `dovetail.passes.reinplace`, where placeholders have no `meta["val"]`. to: a file to write as
    well. format: "svg", "text" or "dot"; by default what the name of the file ends in (.svg, .txt, .dot), or "text".
    level: draw modules as one row each, known by so many parts of their paths, repeated layers together; every node by
    default. hints: a number for each size symbol.
    Raises: ValueError for another format; BadOptionValue for a level below 1; ReportNotWritten for a file that cannot
    be written; what `reinplace` raises for a graph module that cannot be read.
    """
    wanted = format or (SUFFIXES.get(Path(to).suffix.lower(), "") if to is not None else "text")
    if wanted not in ("svg", "text", "dot"):
        what = f"format {format!r}" if format else f"a name that ends in {Path(to or '').suffix!r}"
        raise ValueError(f"{what} is not known: give format='svg', 'text' or 'dot', or a name in .svg, .txt or .dot")
    if level is not None and (type(level) is not int or level < 1):
        reason, expected = "it is the number of parts of a module's path that identify a row", "1 or more, or None"
        raise BadOptionValue(option="level", value=level, reason=reason, expected=expected)
    if not isinstance(program, Program):
        program = lift(program, sample_inputs).program
    drawn = whole(program, hints) if level is None else collapse(program, level, hints)
    made = {"svg": to_svg, "text": to_text, "dot": to_dot}[wanted](drawn)
    if to is not None:
        write_text(to, made)
    return made


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(drawn: Drawn) -> str:
    """The program as lanes and lines of text."""
    lanes = lay_out(drawn.program)
    alive: set[int] = set()
    labels = labels_of(drawn, lanes)
    names = max((len(name) for name, _, _ in labels), default=0)
    calls = max((len(shortened(call)) for _, call, _ in labels), default=0)
    lines: list[str] = []
    for row, (name, call, what) in zip(lanes.rows, labels, strict=True):
        alive.update(row.makes)
        marks = "".join(_cell(row, lane, alive) for lane in range(lanes.width))
        lines.append(f"{marks}   {name:{names}}   {shortened(call):{calls}}   {what}".rstrip())
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


# --- dot ------------------------------------------------------------------------------------------------------------


def to_dot(drawn: Drawn) -> str:
    """The program in the language of Graphviz: a cluster for each module, a colour for each storage."""
    program = drawn.program
    lines = [f"digraph {_quoted(program.name)} {{", "  node [shape=box, style=filled, fontname=monospace];"]
    number: dict[Value, str] = {}
    for index, value in enumerate(program.inputs):
        number[value] = f"i{index}"
        lines.append(f"  i{index} [label={_quoted(described(value))}, shape=ellipse{_fill(value)}];")
    clusters: dict[str, list[str]] = {}
    edges: list[str] = []
    names = Names()
    for index, node in enumerate(program.nodes):
        part = node.target if isinstance(node.target, Part) else None
        written = written_values(node) if part is None else part.written
        results = node.results()
        title = plain_call(names, node).partition("(")[0] if part is None else f"{part.label}: {part.nodes} nodes"
        label = "\n".join((title, *map(described, results)))
        first = next((value for value in results if value.is_tensor), None)
        module = node.origin.module if part is None else ""
        clusters.setdefault(module, []).append(f"n{index} [label={_quoted(label)}{_fill(first)}];")
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
    return f', fillcolor="{color(value.tensor.storage)}55"' if value is not None and value.is_tensor else ""


def _quoted(text: str) -> str:
    text = UNPRINTABLE.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
