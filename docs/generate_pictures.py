"""Draw the pictures of the pages: which cells of a storage the views of it cover, and programs as lanes.

python docs/generate_pictures.py            # write docs/images/*.svg
python docs/generate_pictures.py --check    # exit with status 1 if a picture is not what would be drawn

Every picture is drawn from real views of a tensor that holds its own positions, and its groups come from the analysis.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.analysis.alias_pattern import Accesses, alias_pattern_of
from dovetail.inspect.draw import draw
from dovetail.passes import reinplace

FOLDER = Path(__file__).resolve().parent / "images"

_CELL = 26
_ROW = 34
_LABEL = 218
_NOTE = 290
_TOP = 58
_COLORS = ("#2e86ab", "#d1495b", "#edae49", "#66a182", "#8d6a9f")
_FLAT = "#5b6770"
_FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13"'


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a picture: a view, the cells that it covers, and what is said of it."""

    label: str
    cells: tuple[int, ...]
    note: str
    color: str
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows over a storage of `cells` cells."""

    title: str
    cells: int
    rows: tuple[Row, ...]


# --- what is drawn --------------------------------------------------------------------------------------------------


def pictures() -> dict[str, Picture]:
    """Every picture, by the name of its file."""
    return {
        "alias-regions.svg": _regions(),
        "alias-group.svg": _group(),
        "alias-bytes.svg": _bytes(),
        "alias-families.svg": _families(),
    }


def _positions(view: torch.Tensor) -> tuple[int, ...]:
    """The cells of a view of a tensor of positions."""
    return tuple(sorted(view.flatten().tolist()))


def _regions() -> Picture:
    x = torch.arange(24).view(3, 8)
    views = {
        "x[:, ::2]": (x[:, ::2], "offset 0, sizes 3 4, strides 8 2"),
        "x[:, 1::2]": (x[:, 1::2], "offset 1, sizes 3 4, strides 8 2"),
        "x[1]": (x[1], "offset 8, sizes 8, strides 1"),
        "x[:, 5]": (x[:, 5], "offset 5, sizes 3, strides 8"),
    }
    rows = [
        Row(label, _positions(view), note, _COLORS[i % len(_COLORS)])
        for i, (label, (view, note)) in enumerate(views.items())
    ]
    return Picture("regions of x = torch.zeros(3, 8), a storage of 24 elements", 24, tuple(rows))


def _group() -> Picture:
    base = torch.arange(12)
    views = {"x = base[1:5]": base[1:5], "y = base[3:8]": base[3:8], "z = base[9:12]": base[9:12]}
    rows = [
        Row(label, _positions(view), "written" if i == 0 else "read", _COLORS[i], is_written=i == 0)
        for i, (label, view) in enumerate(views.items())
    ]
    (group,) = alias_pattern_of(list(views.values()), Accesses(written=frozenset([0])), "xyz").groups
    start = int(views["x = base[1:5]"].storage_offset()) - group.back
    names = " ".join("xyz"[member.argument] for member in group.members)
    flat = Row("flat tensor", tuple(range(start, start + group.length)), f"group {names}", _FLAT)
    return Picture("one group: x is written, y overlaps it, z is apart", 12, (*rows, flat))


def _bytes() -> Picture:
    base = torch.arange(24, dtype=torch.uint8)
    views = {
        "f = floats[1:3]": base.view(torch.float32)[1:3],
        "i = shorts[3:8]": base.view(torch.int16)[3:8],
        "b = bytes[18:22]": base[18:22],
    }
    notes = ("float32, written", "int16, written", "uint8, written, apart")
    rows = [
        Row(label, _positions(view.view(torch.uint8)), note, color, is_written=True)
        for (label, view), note, color in zip(views.items(), notes, _COLORS, strict=False)
    ]
    (group,) = alias_pattern_of(list(views.values()), Accesses(written=frozenset(range(3))), "fib").groups
    start = rows[0].cells[0] - group.back
    cells = tuple(range(start, start + group.length))
    return Picture(
        "one group of two dtypes, over bytes", 24, (*rows, Row("flat tensor", cells, f"{group.dtype}", _FLAT))
    )


def _families() -> Picture:
    base = torch.arange(12)
    apart = base.detach()
    views = {
        "x = base[:4]": base[:4],
        "y = base[6:9]": base[6:9],
        "z = base.detach()[2:7]": apart[2:7],
        "w = base.detach()[9:]": apart[9:],
    }
    (group,) = alias_pattern_of(list(views.values()), Accesses(frozenset([0]), tracked=frozenset([0])), "xyzw").groups
    family_of = {member.argument: member.family for member in group.members}
    rows = []
    for i, (label, view) in enumerate(views.items()):
        note = f"family {family_of[i]}" if i in family_of else "no byte in common: no group"
        note = f"{note}, written" if i == 0 else note
        rows.append(Row(label, _positions(view), note, _COLORS[i], is_written=i == 0))
    return Picture("two families in one group: autograd takes x and y for views of base", 12, tuple(rows))


# --- drawing --------------------------------------------------------------------------------------------------------


def render(picture: Picture) -> str:
    """The picture as SVG."""
    width = _LABEL + picture.cells * _CELL + _NOTE
    height = _TOP + len(picture.rows) * _ROW + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(picture.title)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, picture.title, "#111111", ' font-weight="bold"'),
    ]
    for cell in range(picture.cells):
        lines.append(
            _text(_LABEL + cell * _CELL + _CELL // 2, _TOP - 10, str(cell), "#777777", ' text-anchor="middle"')
        )
    for number, row in enumerate(picture.rows):
        lines += _row(row, _TOP + number * _ROW, picture.cells)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(row: Row, y: int, cells: int) -> list[str]:
    lines = [_text(12, y + 18, row.label, "#111111")]
    covered = set(row.cells)
    for cell in range(cells):
        place = f'x="{_LABEL + cell * _CELL + 1}" y="{y}" width="{_CELL - 2}" height="{_ROW - 8}"'
        style = f'fill="{row.color}"' if cell in covered else 'fill="#f3f4f5"'
        edge = ' stroke="#111111" stroke-width="2"' if cell in covered and row.is_written else ""
        lines.append(f"<rect {place} {style}{edge}/>")
    return [*lines, _text(_LABEL + cells * _CELL + 10, y + 18, row.note, "#444444")]


def _text(x: int, y: int, text: str, color: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" fill="{color}" {_FONT}{more}>{escape(text)}</text>'


def _step_in_place() -> str:
    """The program of docs/instruments.md, working in place."""

    def smooth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w)
        new = torch.lerp(x, y, 0.1)
        x.copy_(new)
        return y.sum()

    return draw(reinplace(make_fx(smooth)(torch.randn(4, 4), torch.randn(4, 4))), format="svg")


def main(arguments: Sequence[str]) -> int:
    """Draw the pictures, or check them with `--check`; the exit status."""
    drawn = {FOLDER / name: render(picture) for name, picture in pictures().items()}
    drawn[FOLDER / "lanes-in-place.svg"] = _step_in_place()
    if "--check" in arguments:
        stale = [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text]
        if stale:
            print(f"not up to date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in drawn.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
