"""An explanation as one HTML file: styles, script and data inside, nothing fetched.

Numbers and tables are written here, so that they can be read, searched and printed without the script; the script draws
the maps, filters rows, and shows differences when they are opened. Whatever comes from the user is escaped: text by
`html.escape`, data as JSON without `<`, `>` and `&`. Besides, the page's own policy (`Content-Security-Policy`) allows
the one script and the one style sheet in it, by their hashes, and nothing that has to be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import resources
from typing import Any

from dovetail.analysis.categories import CATEGORIES
from dovetail.inspect import page_answers, page_limits, page_tables, page_text
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.grouping import Branch, By, group
from dovetail.inspect.holders import Holder, Moment, peak_moment
from dovetail.inspect.report_rows import StorageRow
from dovetail.inspect.source_paths import line_text
from dovetail.inspect.units import Unit, byte_unit

_SCRIPTS = ("page.js", "page_tree.js")
_BY: tuple[By, ...] = ("module", "layer", "line", "operator")
_KINDS = {"inference": "one call, without gradients", "forward": "one training step", "step": "one whole training step"}


def render_page(explanation: ExplanationData) -> str:
    """The whole page."""
    moment = peak_moment(explanation)
    eager = explanation.eager
    unit = byte_unit(max(moment.total_bytes, eager.total_bytes if eager is not None else 0))
    folder = resources.files("dovetail.inspect")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    style = (folder / "page.css").read_text(encoding="utf-8")
    parts = {
        "policy": _policy(script, style),
        "style": style,
        "script": script,
        "title": escape(explanation.name),
        "subtitle": escape(_subtitle(explanation, unit)),
        "need": "".join(page_answers.need(explanation, moment, unit)),
        "limits": "".join(page_limits.limits(explanation)),
        "holders": "".join(page_answers.holders(moment, unit)),
        "decisions": "".join(page_answers.decisions(explanation, unit)),
        "time": "".join(page_answers.time(explanation)),
        "live": "".join(page_tables.live(explanation, unit)),
        "steps": "".join(page_tables.steps(explanation.steps, unit)),
        "programs": "".join(page_tables.programs(explanation, unit)),
        "words": "".join(page_tables.words(explanation, unit)),
        "data": _script_data(explanation, moment, unit),
    }
    pieces = (folder / "page.html").read_text(encoding="utf-8").split("@@")  # in turn text and names of parts
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _policy(script: str, style: str) -> str:
    """Nothing is loaded, and nothing runs but this script. Source: W3C, Content Security Policy Level 3."""
    rules = {
        "default-src": "'none'",
        "script-src": source_hash(script),
        "style-src": source_hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def source_hash(text: str) -> str:
    """The text of a script or style as a source that a Content-Security-Policy can name."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _subtitle(explanation: ExplanationData, unit: Unit) -> str:
    counts = ", ".join(f"{program.kind} {len(program.nodes):,} operators" for program in explanation.programs)
    kind = _KINDS.get(explanation.programs[0].kind, "")
    return f"{kind}: {counts}. Memory in {unit.name}."


# --- data of the script ---------------------------------------------------------------------------------------------


def _script_data(explanation: ExplanationData, moment: Moment, unit: Unit) -> str:
    data = {
        "unit": {"name": unit.name, "size": unit.size},
        "categories": [[category, page_text.STYLES[category]] for category in CATEGORIES],
        "holders": _holders(moment),
        "maps": [
            {
                "storages": [_storage(row, explanation) for row in memory.storages],
                "live": memory.live_bytes,
                "peak": memory.peak_bytes,
                "peakNode": memory.peak_node,
                "nodes": memory.nodes,
                "backwardFrom": memory.backward_from,
            }
            for memory in page_tables.maps_of(explanation).values()
        ],
        "diffs": {place: row.diff for place, row in enumerate(explanation.steps) if row.diff},
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _holders(moment: Moment) -> dict[str, Any]:
    """Every storage at the peak, and the trees that they are grouped by: of numbers of storages at the leaves."""
    numbers = {id(holder): number for number, holder in enumerate(moment.holders)}

    def branch(found: Branch) -> list[Any]:
        inside = [branch(child) for child in found.children]
        return [found.label, found.size, inside, [numbers[id(holder)] for holder in found.holders]]

    return {
        "total": moment.total_bytes,
        "holders": [_holder(holder) for holder in moment.holders],
        "trees": {by: branch(group(moment.holders, by)) for by in _BY},
    }


def _holder(holder: Holder) -> list[Any]:
    category = CATEGORIES.index(holder.category)
    facts = [holder.name, holder.bytes, category, holder.meta, holder.operator]
    return [*facts, holder.line, holder.source, holder.module]


def _storage(row: StorageRow, explanation: ExplanationData) -> list[Any]:
    """A storage, with its line: where, and its text."""
    facts = [row.storage, row.name, row.operator, row.meta, row.bytes, row.first, row.last]
    source = explanation.lines.get(f"{row.origin.file}:{row.origin.line}", "") if row.origin.file else ""
    return [*facts, CATEGORIES.index(row.category), line_text(row.origin) or row.origin.module, source]
