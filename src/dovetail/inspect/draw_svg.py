"""A program as an SVG document: labels on the left, where they stay in view, and a lane for each storage beside them.

A lane is as wide as the logarithm of its bytes says; the first line of the drawing has the scale. Long labels are cut,
and whole when they are pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from xml.sax.saxutils import escape

from dovetail.inspect.collapse import Drawn, Part
from dovetail.inspect.draw_labels import UNPRINTABLE, color, labels_of, shortened, shortened_path
from dovetail.inspect.lanes import Lanes, Life, Row, lay_out
from dovetail.inspect.units import byte_unit

_ROW = 18
_TOP = 34
_LEFT = 12
_GAP = 6
_THIN, _WIDE = 2.0, 14.0
_LETTER = 7.3
_MOST = (24, 26, 62, 40)  # letters of modules, names, calls and results

_STYLE = (
    ".row:hover .back{fill:#dbe7ff}.back{fill:transparent}.what{fill:#667}.module{fill:#667;font-weight:bold}"
    ".scale{fill:#667}"
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where things stand. columns: x of the labels. lanes: x of the middle of each lane. widths: of storages."""

    columns: tuple[float, float, float, float]
    lanes: tuple[float, ...]
    widths: Mapping[int, float]
    width: float
    height: int


def to_svg(drawn: Drawn) -> str:
    """The program as an SVG document."""
    lanes = lay_out(drawn.program)
    labels = labels_of(drawn, lanes)
    bands = _bands(lanes)
    widths = _widths(drawn)
    plan = _plan(lanes, labels, [band[0] for band in bands], widths, _scale(drawn))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{plan.width:.0f}" height="{plan.height}" '
        f'viewBox="0 0 {plan.width:.0f} {plan.height}" font-family="monospace" font-size="12">',
        f"<title>{_xml(drawn.program.name)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{plan.width:.0f}" height="{plan.height}" fill="#fff"/>',
        f'<text class="scale" x="{_LEFT}" y="16">{_xml(_scale(drawn))}</text>',
        *(_band(number, band, plan) for number, band in enumerate(bands)),
        *(_life(life, plan, drawn) for life in lanes.lives),
    ]
    storages = _storages_of(lanes)
    for at, (row, label) in enumerate(zip(lanes.rows, labels, strict=True)):
        parts.append(_svg_row(at, row, label, plan, storages[at]))
    return "\n".join([*parts, "</svg>", ""])


def _widths(drawn: Drawn) -> dict[int, float]:
    """The width of the lane of each storage, on a logarithmic scale."""
    sizes = [size for size in drawn.sizes.values() if size > 0]
    least, most = (min(sizes), max(sizes)) if sizes else (1, 1)
    span = math.log(most / least) if most > least else 1.0
    return {
        storage: _THIN + (_WIDE - _THIN) * math.log(size / least) / span if size > 0 and most > least else _THIN
        for storage, size in drawn.sizes.items()
    }


def _scale(drawn: Drawn) -> str:
    sizes = [size for size in drawn.sizes.values() if size > 0]
    if not sizes or min(sizes) == max(sizes):
        return "lanes: storages, in execution order"
    least, most = (byte_unit(size).text(size) for size in (min(sizes), max(sizes)))
    bundled = "; a lane can stand for several storages" if any(count > 1 for count in drawn.counts.values()) else ""
    return f"lane width: logarithm of bytes, {least} is thinnest, {most} widest{bundled}"


def _plan(
    lanes: Lanes,
    labels: Sequence[tuple[str, str, str]],
    modules: Sequence[str],
    widths: Mapping[int, float],
    scale: str,
) -> _Plan:
    texts = [modules, *([label[part] for label in labels] for part in range(3))]
    letters = [min(max(map(len, column), default=0), most) for column, most in zip(texts, _MOST, strict=True)]
    *columns, end = accumulate((count * _LETTER + (2 * _LETTER if count else 0) for count in letters), initial=_LEFT)
    room = [_THIN] * lanes.width
    for life in lanes.lives:
        room[life.lane] = max(room[life.lane], widths.get(life.storage, _THIN))
    ends = list(accumulate((wide + _GAP for wide in room), initial=end))
    middles = tuple(start + wide / 2 for start, wide in zip(ends, room, strict=False))
    width = max(ends[-1] + _LEFT, len(scale) * _LETTER + 2 * _LEFT)
    first, second, third, fourth = columns
    return _Plan((first, second, third, fourth), middles, widths, width, len(lanes.rows) * _ROW + _TOP)


def _svg_row(at: int, row: Row, label: tuple[str, str, str], plan: _Plan, storages: dict[int, int]) -> str:
    y = _y(at)
    touched = (*row.reads, *row.makes, *row.shows, *row.writes)
    marks: list[str] = []
    if row.node is not None and touched:
        first, last = plan.lanes[min(touched)], plan.lanes[max(touched)]
        marks.append(f'<path d="M{first:.1f} {y}H{last:.1f}" stroke="#99a" stroke-width="1"/>')
    for lane in dict.fromkeys((*row.reads, *row.shows)):
        marks.append(
            f'<circle cx="{plan.lanes[lane]:.1f}" cy="{y}" r="2.2" fill="#fff" stroke="{color(storages[lane])}"/>'
        )
    for lane in row.writes:
        x = plan.lanes[lane] - 4
        marks.append(f'<rect x="{x:.1f}" y="{y - 4}" width="8" height="8" fill="{color(storages[lane])}"/>')
    for lane in row.makes:
        marks.append(f'<circle cx="{plan.lanes[lane]:.1f}" cy="{y}" r="4" fill="{color(storages[lane])}"/>')
    is_part = row.node is not None and isinstance(row.node.target, Part)
    origin = str(row.node.origin) if row.node is not None and not is_part else ""
    hint = "\n".join(filter(None, (" ".join(filter(None, label)), origin, "backward" if row.is_backward else "")))
    slant = ' font-style="italic"' if row.is_backward else ""
    _, *columns = plan.columns
    short = (shortened_path(label[0], _MOST[1]), shortened(label[1], _MOST[2]), shortened(label[2], _MOST[3]))
    name, call, what = map(_xml, short)
    return (
        f'<g class="row"><title>{_xml(hint)}</title>'
        f'<rect class="back" x="{columns[0] - 6:.0f}" y="{y - _ROW / 2}" width="{plan.width - columns[0]:.0f}" '
        f'height="{_ROW}"/>{"".join(marks)}'
        f'<text x="{columns[0]:.0f}" y="{y + 4}"{slant}>{name}</text>'
        f'<text x="{columns[1]:.0f}" y="{y + 4}">{call}</text>'
        f'<text class="what" x="{columns[2]:.0f}" y="{y + 4}">{what}</text></g>'
    )


def _bands(lanes: Lanes) -> list[tuple[str, int, int]]:
    """The rows of each module, where modules are not rows themselves."""
    bands: list[tuple[str, int, int]] = []
    for at, row in enumerate(lanes.rows):
        if row.node is None or isinstance(row.node.target, Part):
            continue
        if bands and bands[-1][0] == row.module:
            bands[-1] = (row.module, bands[-1][1], at)
        else:
            bands.append((row.module, at, at))
    return [band for band in bands if band[0]]


def _band(number: int, band: tuple[str, int, int], plan: _Plan) -> str:
    module, first, last = band
    top, tall = _y(first) - _ROW / 2, (last - first + 1) * _ROW
    shade = "#f2f5fa" if number % 2 else "#f7f3ec"
    return (
        f'<rect x="0" y="{top}" width="{plan.width:.0f}" height="{tall}" fill="{shade}"/>'
        f'<text class="module" x="{plan.columns[0]}" y="{top + 13}">{_xml(shortened_path(module, _MOST[0]))}'
        f"<title>{_xml(module)}</title></text>"
    )


def _life(life: Life, plan: _Plan, drawn: Drawn) -> str:
    pale = ' stroke-opacity="0.4"' if life.is_input else ""
    bottom = _y(life.last) + (6 if life.is_returned else 0)
    size, count = drawn.sizes.get(life.storage, 0), drawn.counts.get(life.storage, 1)
    what = f"{count} storages" if count > 1 else f"storage {life.storage}"
    return (
        f'<path d="M{plan.lanes[life.lane]:.1f} {_y(life.first)}V{bottom}" stroke="{color(life.storage)}"'
        f' stroke-width="{plan.widths.get(life.storage, _THIN):.1f}" fill="none"{pale}>'
        f"<title>{what}, {byte_unit(size).text(size)}</title></path>"
    )


def _storages_of(lanes: Lanes) -> list[dict[int, int]]:
    """For each row, the storage in each lane that it touches."""
    found: list[dict[int, int]] = [{} for _ in lanes.rows]
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
            found[at][lane] = holders[lane][places[lane]].storage
    return found


def _y(row: int) -> int:
    return _TOP + row * _ROW


def _xml(text: str) -> str:
    return escape(UNPRINTABLE.sub("\ufffd", text))
