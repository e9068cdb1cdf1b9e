"""Pieces of HTML that every part of the page is made of. Text from the user is escaped only here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dovetail.analysis.categories import CATEGORIES
from dovetail.inspect.source_paths import line_text
from dovetail.inspect.units import Unit
from dovetail.ir.program import Origin

STYLES = {category: category.partition(" ")[0] for category in CATEGORIES}
"""The name in the style sheet of each category."""
assert len(set(STYLES.values())) == len(CATEGORIES), "each category has a colour of its own"


def anchor(kind: str) -> str:
    """The id of a kind of decision."""
    return kind.replace(" ", "-")


def table(head: Sequence[str], rows: Iterable[str], style: str = "") -> str:
    """A table in a box that scrolls by itself. head: columns of numbers begin with `#`."""
    cells = [
        f'<th class="number">{escape(name[1:] or name)}</th>' if name.startswith("#") else f"<th>{escape(name)}</th>"
        for name in head
    ]
    kind = f' class="{style}"' if style else ""
    return f"<table{kind}><thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def row(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"<tr>{''.join(cells)}</tr>"


def number(amount: int, unit: Unit) -> str:
    """A cell with bytes in the unit of the page; pointing at it shows them all."""
    return f'<td class="number" title="{amount:,} bytes">{escape(unit.number(amount))}</td>'


def share(part: int, total: int) -> str:
    """A cell with a part of something, as a bar."""
    percent = 100 * part / total if total else 0.0
    return f'<td class="number bar" data-part="{percent:.1f}">{percent:.1f} %</td>'


def code(text: str) -> str:
    """A cell with text of a program."""
    return f"<td><code>{escape(text)}</code></td>"


def line(origin: Origin, lines: Mapping[str, str]) -> str:
    """A cell with a line of code: where, and its text."""
    if not origin.file:
        return f'<td class="line">{escape(origin.module)}</td>'
    source = lines.get(f"{origin.file}:{origin.line}", "")
    shown = f'<code class="source">{escape(source)}</code>' if source else ""
    module = f" <span class='module'>{escape(origin.module)}</span>" if origin.module else ""
    return f'<td class="line" title="{escape(str(origin))}">{escape(line_text(origin))}{module}{shown}</td>'


def swatch(category: str, text: str = "") -> str:
    """The colour of a category, and its name or another text."""
    return f'<span class="key"><i class="swatch {STYLES[category]}"></i>{escape(text or category)}</span>'


def mixed_bar(parts: Iterable[tuple[str, int]], most: int) -> str:
    """A bar of parts by category, as long as the largest one is 100 %. It is SVG: widths need no style attribute."""
    x = 0.0
    rects = []
    for category, amount in parts:
        width = 100 * amount / most if most else 0.0
        rects.append(f'<rect class="{STYLES[category]}" x="{x:.3f}%" y="0" width="{width:.3f}%" height="100%"/>')
        x += width
    return f'<svg class="bar" aria-hidden="true">{"".join(rects)}</svg>'


def plain_bar(part: float, most: float, style: str) -> str:
    """A bar of one colour."""
    width = 100 * part / most if most else 0.0
    rect = f'<rect class="{style}" x="0" y="0" width="{width:.3f}%" height="100%"/>'
    return f'<svg class="bar" aria-hidden="true">{rect}</svg>'
