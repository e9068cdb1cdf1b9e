"""docs/models.md: what the search over architectures found, as a page, and read from the page again.

A verdict is `same`, or its kind, a colon and the reason: "refused: DT-CAPTURE-002 ...". The page has one row for each
architecture, with the kind for each door, and the reasons of those that are not the same in the last column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

SAME = "same"
DOORS = ("backend", "step", "freeze")
Verdicts = dict[str, dict[str, str]]

_INTRODUCTION = """# Models

Architectures of `transformers` in tiny configurations, and a small one of each family of `timm`, compared with
eager mode on the CPU, in float32, with one thread.

- *backend*: three training steps with AdamW through `torch.compile(backend="dovetail")`.
- *step*: the same three steps through `dovetail.compile_step`.
- *freeze*: one call of the model that `dovetail.freeze` makes.

`=`: the same bits: losses, parameters, buffers, optimizer states, random numbers; logits for *freeze*. Models of
`transformers` compute something else while Dynamo looks at them, so *backend* is compared with Dynamo's own graphs, run
by eager mode (`backend="eager"`).

*as aot_eager*: Dynamo cuts the model into several graphs. A gradient to which several graphs contribute is added up in
another order than in eager mode, and has the bits that `backend="aot_eager"` gives, which works in the same way.
*refused*: an error with a code ([errors](errors.md)), and no result.
"""
_MADE = "Made by `python -m tests.model_sweep --page docs/models.md`, with "
_TITLE = re.compile(r"^## (\S+)$", re.MULTILINE)
_NO_REASON = "\N{EM DASH}"


def page(verdicts: Verdicts, versions: Mapping[str, str]) -> str:
    """The page. versions: of what was measured, by name."""
    libraries: dict[str, Verdicts] = {}
    for label, found in verdicts.items():
        libraries.setdefault("timm" if label.startswith("timm ") else "transformers", {})[label] = found
    counts = [
        f"| {library} | {len(rows)} | " + " | ".join(_counted(rows, door) for door in DOORS) + " |"
        for library, rows in sorted(libraries.items())
    ]
    made = f"{_MADE}{', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}.\n"
    parts = [_INTRODUCTION, made, *_head("library", "architectures", *DOORS), *counts]
    for library, rows in sorted(libraries.items()):
        parts += ["", f"## {library}", "", *_head("architecture", *DOORS, "why not the same")]
        parts += [_row(label, rows[label]) for label in sorted(rows)]
    return "\n".join([*parts, ""])


def read(text: str) -> tuple[Verdicts, dict[str, str]]:
    """The verdicts and the versions that a page was made from."""
    verdicts: Verdicts = {}
    (made,) = [line for line in text.splitlines() if line.startswith(_MADE)]
    versions = dict(part.rsplit(" ", 1) for part in made.removeprefix(_MADE)[:-1].split(", "))
    tables = _TITLE.split(text)[2::2]
    for line in "\n".join(tables).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) != len(DOORS) + 2 or cells[0] == "architecture":
            continue
        reasons = dict(part.split(": ", 1) for part in cells[-1].split("<br>")) if cells[-1] != _NO_REASON else {}
        kinds = dict(zip(DOORS, cells[1:-1], strict=True))
        verdicts[cells[0]] = {
            door: SAME if kind == "=" else f"{kind}: {reasons[door]}" for door, kind in kinds.items() if kind
        }
    return verdicts, versions


def without_paths(text: str) -> str:
    """A message in one line, without the folders that packages are installed in."""
    text = re.sub(r"\S*/(?:site|dist)-packages/", "", text)
    return re.sub(r"\s+", " ", text).replace(" | ", " or ").strip()


def told(error: Exception) -> str:
    """An error in a cell: dovetail's by its code, the first line and the user's line; others by type and first line."""
    lines = [without_paths(line) for line in str(error).splitlines()]
    code = getattr(error, "code", None)
    first = (lines[0] if lines else "").removeprefix(f"{code} ").removeprefix(f"{type(error).__name__}: ")
    source = [f"at {line.removeprefix('from ')}" for line in lines if line.startswith("from ")][:1]
    return " ".join([f"{code or type(error).__name__}: {first}", *source])


def _counted(rows: Verdicts, door: str) -> str:
    kinds = Counter(found[door].partition(":")[0] for found in rows.values() if door in found)
    rest = [f"{count} {kind}" for kind, count in sorted(kinds.items()) if kind != SAME]
    return ", ".join([f"{kinds[SAME]} =", *rest])


def _head(*titles: str) -> list[str]:
    return ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]


def _row(label: str, found: Mapping[str, str]) -> str:
    kinds = ["=" if found.get(door) == SAME else found.get(door, "").partition(":")[0] for door in DOORS]
    reasons = [f"{door}: {found[door].partition(': ')[2]}" for door in DOORS if found.get(door, SAME) != SAME]
    return f"| {label} | " + " | ".join(kinds) + f" | {'<br>'.join(reasons) or _NO_REASON} |"
