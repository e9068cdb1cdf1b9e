"""An explanation as text of at most 100 columns: memory, its holders, the decisions, and the time.

Equal rows of repeated layers are one row; `full` unfolds them. All bytes are in one unit, times in another.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from dovetail.inspect.decisions import kinds_in
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.grouping import Branch, DecisionGroup, group, group_decisions
from dovetail.inspect.holders import Moment, layers_of, peak_moment, short_operator
from dovetail.inspect.layers import Layers
from dovetail.inspect.report_rows import StepRow
from dovetail.inspect.source_paths import line_text
from dovetail.inspect.step_time import OperatorTime, StepTime
from dovetail.inspect.units import Unit, byte_unit, time_unit
from dovetail.ir.program import Origin
from dovetail.pipeline.compile_trace import LIKELY

COLUMNS = 100
_MOST_OF_A_KIND = 6
_MOST_BRANCHES = 8
_MOST_ROWS = 8
_DEPTH = 2
_LEAST_SHARE = 10  # what has less than a tenth is not unfolded
_WHAT_BYTES_ARE = {
    "saved": "held from forward to backward",
    "recomputed": "computed again in backward",
    "in place": "not allocated",
    "copied": "only moved, nothing computed",
    "donated": "of results in donated memory",
}


def render_text(explanation: ExplanationData, *, times: bool = True, full: bool = False) -> str:
    """The text. times: whether to say how long each step of the compilation took. full: every row."""
    peak = peak_moment(explanation)
    eager = explanation.eager.total_bytes if explanation.eager is not None else 0
    unit = byte_unit(max(peak.total_bytes, eager))
    layers = layers_of(explanation)
    lines = [
        *_needs(explanation, peak, unit),
        *_holders(explanation, peak, unit, full),
        *_decided(explanation, layers, unit, full),
        *_passes(explanation, unit, times, full),
        *time_lines(explanation.time, layers),
    ]
    return "\n".join(fitted(line) for line in lines)


def fitted(line: str, columns: int = COLUMNS) -> str:
    """A line of text that is no longer than that, and one line whatever names are in it."""
    line = "".join(letter if letter.isprintable() else "?" for letter in line).rstrip()
    return line if len(line) <= columns else line[: columns - 3] + "..."


# --- how much is needed ---------------------------------------------------------------------------------------------


def _needs(explanation: ExplanationData, peak: Moment, unit: Unit) -> Iterator[str]:
    made, total = explanation.peak_bytes, peak.total_bytes
    yield f"{explanation.name}: predicted peak {unit.text(total)}"
    if explanation.eager is not None:
        eager = explanation.eager.total_bytes
        share = f"{100 * total / eager:.0f} % of eager's" if eager else ""
        yield f"  eager           {unit.text(eager):>12}   the recorded operators, simulated like the program"
        yield f"  this program    {unit.text(total):>12}   {share}"
    yield f"    was there     {unit.text(peak.resident_bytes):>12}   weights, inputs and other state"
    yield f"    it makes      {unit.text(made):>12}"
    for program in explanation.programs:
        level = f"{unit.text(program.peak_bytes)} by itself, " if len(explanation.programs) > 1 else ""
        yield f"      {program.kind:<24}   {level}{len(program.nodes):,} nodes"
    if any(LIKELY in program.name for program in explanation.programs):
        yield ""
        for line in LIKELY_MEANS:
            yield f"  {line}"


LIKELY_MEANS = (
    "Programs with _likely in their names: forward has several results that gradients could arrive",
    "for. They are for the usual case, in which only the losses (results of one number) get one.",
)


# --- who holds it ---------------------------------------------------------------------------------------------------


def _holders(explanation: ExplanationData, peak: Moment, unit: Unit, full: bool) -> Iterator[str]:
    yield ""
    if explanation.step.peak_node < 0 or not peak.holders:
        yield "who holds memory at the peak: nothing is allocated"
        return
    node = explanation.step.peak_node
    yield f"who holds {unit.text(peak.total_bytes)} at the peak, node {node}: {explanation.step.nodes[node]}"
    yield "  by kind"
    for branch in group(peak.holders, "category").children:
        yield _amount(branch, branch.label, unit, peak.total_bytes, 2)
    yield "  by layer"
    yield from _tree(group(peak.holders, "layer"), unit, peak.total_bytes, full)
    yield "  by line"
    lines = [leaf for file in group(peak.holders, "line").children for leaf in file.children or (file,)]
    lines.sort(key=lambda leaf: (leaf.is_library, -leaf.size))
    for branch in _shown(lines, full):
        source = branch.holders[0].source if branch.holders else ""
        yield _amount(branch, f"{branch.label}  {source}", unit, peak.total_bytes, 2)
    yield from _rest(lines, unit, full)
    if full:
        yield "  every storage"
        for holder in peak.holders:
            made = f"{holder.operator} at {holder.line}" if holder.line else holder.operator
            yield f"    {unit.number(holder.bytes):>9}  {holder.name}: {holder.meta}, {holder.category}  {made}"


def _tree(tree: Branch, unit: Unit, total: int, full: bool, depth: int = 0, left: int = _DEPTH) -> Iterator[str]:
    """The branches below one, the largest first; small ones and deep ones only when everything is wanted.

    left: how many more levels are shown; one that holds nearly all of the level above it is for free.
    """
    above = tree.size
    for branch in _shown(tree.children, full):
        yield _amount(branch, branch.label, unit, total, 2 + depth)
        if full or (left and branch.size * _LEAST_SHARE >= total):
            yield from _tree(branch, unit, total, full, depth + 1, left - (branch.size * 10 < 9 * above))
    yield from _rest(tree.children, unit, full, 2 + depth)


def _amount(branch: Branch, label: str, unit: Unit, total: int, depth: int) -> str:
    share = 100 * branch.size / total if total else 0.0
    count = f"{branch.count:,} x " if branch.count > 1 else ""
    return f"{'  ' * depth}{unit.number(branch.size):>9}  {share:>3.0f} %  {count}{label}"


def _shown(branches: Sequence[Branch], full: bool) -> Sequence[Branch]:
    return branches if full or len(branches) <= _MOST_BRANCHES + 1 else branches[:_MOST_BRANCHES]


def _rest(branches: Sequence[Branch], unit: Unit, full: bool, depth: int = 2) -> Iterator[str]:
    hidden = branches[len(_shown(branches, full)) :]
    if hidden:
        yield f"{'  ' * depth}{unit.number(sum(branch.size for branch in hidden)):>9}         {len(hidden):,} more"


# --- what was decided -----------------------------------------------------------------------------------------------


def _decided(explanation: ExplanationData, layers: Layers, unit: Unit, full: bool) -> Iterator[str]:
    yield ""
    yield "what was decided"
    groups = group_decisions(explanation.decisions, layers)
    for kind in kinds_in(explanation.decisions):
        rows = [found for found in groups if found.kind == kind]
        free = [found for found in rows if found.code == "IS-INPUT"]
        others = [found for found in rows if found.code != "IS-INPUT"]
        total = sum(found.bytes for found in rows)
        count = sum(found.count for found in rows)
        what = f"{count:,}, {unit.text(total)} {_WHAT_BYTES_ARE[kind]}" if count else "nothing"
        yield f"  {kind}: {what}"
        yield from _groups(others, unit, full)
        inputs = [row.name for found in free for row in found.rows]
        if inputs:
            yield f"    and {len(inputs)} inputs, which the caller keeps: {', '.join(inputs)}"


def _groups(groups: Sequence[DecisionGroup], unit: Unit, full: bool) -> Iterator[str]:
    shown = groups if full or len(groups) <= _MOST_OF_A_KIND + 1 else groups[:_MOST_OF_A_KIND]
    whys: dict[str, dict[str, None]] = {}
    for found in shown:
        whys.setdefault(found.code, {})[found.why] = None
    cells = [
        [
            f"{found.count:,} x",
            found.operator,
            unit.text(found.bytes_each) + (" each" if found.count > 1 else ""),
            found.code,
            found.layer or line_text(found.rows[0].origin),
        ]
        for found in shown
    ]
    for found, line in zip(shown, _table(cells, right={0, 2}), strict=True):
        yield line
        for row in found.rows if full else ():
            yield f"          {row.name}: {'; '.join(filter(None, (row.why, row.detail)))}  {origin_text(row.origin)}"
    hidden = groups[len(shown) :]
    if hidden:
        rows, rest = sum(found.count for found in hidden), unit.text(sum(found.bytes for found in hidden))
        yield f"    {rows:,} more in {len(hidden):,} groups, {rest}"
    for code, reasons in whys.items():
        yield f"      {code}: {'; or '.join(reasons)}"


def _table(rows: Sequence[Sequence[str]], right: Iterable[int]) -> Iterator[str]:
    """Aligned columns. right: numbers of the columns that are aligned on the right."""
    if not rows:
        return
    cut = [[*(fitted(cell, 36) for cell in row[:-1]), row[-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    aligned = set(right)
    for row in cut:
        cells = [c.rjust(w) if i in aligned else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "    " + "  ".join(cells)


# --- what the steps did ---------------------------------------------------------------------------------------------


def _passes(explanation: ExplanationData, unit: Unit, times: bool, full: bool) -> Iterator[str]:
    """The steps of the compilation; those that changed nothing only when everything is wanted."""
    yield ""
    yield "steps of the compilation"
    table: list[list[str]] = []
    before: StepRow | None = None
    shown = [row for row in explanation.steps if full or not _changed_nothing(row)]
    for row in shown:
        label = row.program if before is None or before.program != row.program else ""
        did = f"dropped, {row.reason}" if row.reason and row.name != "partition" else row.did
        if before is not None and before.name == row.name and before.did == row.did:
            did = ""  # one split makes both halves
        before = row
        nodes = f"{row.nodes_before} -> {row.nodes_after}" if row.nodes_before >= 0 else ""
        peak = unit.text(row.peak_bytes) if row.peak_bytes >= 0 else ""
        time = f"{row.time_us / 1000:.1f} ms" if row.time_us >= 0 else ""
        table.append([label, row.name, nodes, peak, *([time] if times else []), did])
    beside = _table([cells[:-1] for cells in table], {2, 3, 4} if times else {2, 3})
    for line, cells in zip(beside, table, strict=True):
        yield line
        yield from textwrap.wrap(cells[-1], COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8)
    hidden = len(explanation.steps) - len(shown)
    if hidden:
        yield f"    {hidden} more changed nothing"


def _changed_nothing(row: StepRow) -> bool:
    is_same = not row.diff and not row.reason and row.nodes_before == row.nodes_after
    return is_same and row.time_us >= 0 and row.name != "partition"


def origin_text(origin: Origin) -> str:
    """A line of code and its module, short: `model.py:24 (layers.3)`."""
    if not origin.file:
        return origin.module
    return line_text(origin) + (f" ({origin.module})" if origin.module else "")


def time_lines(time: StepTime | None, layers: Layers) -> Iterator[str]:
    """The layers and operators that take longest. Without a measurement, how to get one."""
    yield ""
    if time is None:
        yield "where the time goes: not measured"
        yield "  dovetail.explain(..., measure_time=True) runs the program on random inputs to see"
        return
    if time.ratio is None:
        yield f"where the time goes: it does not run on random inputs: {time.failure}"
        return
    unit = time_unit(max(time.eager_ns, time.compiled_ns))
    yield f"where the time goes: {unit.text(time.compiled_ns)}, eager {unit.text(time.eager_ns)}"
    yield f"  {time.ratio.median:.2f} of eager's time ({time.ratio.spread}); every operator timed, on random inputs"
    yield from _time_table("layer", time, lambda row: layers.fold(row.origin.module) or "(outside modules)", unit)
    yield from _time_table("operator", time, lambda row: short_operator(row.operator).removesuffix("_"), unit)


def _time_table(title: str, time: StepTime, key: Callable[[OperatorTime], str], unit: Unit) -> Iterator[str]:
    ours, theirs = _sums(time.compiled, key), _sums(time.eager, key)
    total = sum(ours.values())
    yield f"  by {title}           eager"
    rows = sorted(ours, key=lambda label: -ours[label])
    for label in rows[:_MOST_ROWS]:
        share = 100 * ours[label] / total if total else 0.0
        yield f"    {unit.number(ours[label]):>9} {unit.number(theirs[label]):>9}  {share:>3.0f} %  {label}"
    rest = rows[_MOST_ROWS:]
    if rest:
        sums = (sum(found[label] for label in rest) for found in (ours, theirs))
        yield f"    {' '.join(f'{unit.number(sum_):>9}' for sum_ in sums)}         {len(rest):,} more"


def _sums(rows: tuple[OperatorTime, ...], key: Callable[[OperatorTime], str]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[key(row)] += row.time_ns
    return found
