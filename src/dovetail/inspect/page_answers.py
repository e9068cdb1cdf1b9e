"""The first screen of the page: how much memory, who holds it, what was decided, where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from dovetail.analysis.categories import CATEGORIES
from dovetail.inspect import page_text as text
from dovetail.inspect.decisions import kinds_in
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.grouping import Branch, DecisionGroup, group, group_decisions
from dovetail.inspect.holders import Moment, layers_of, short_operator
from dovetail.inspect.layers import Layers
from dovetail.inspect.step_time import OperatorTime, StepTime
from dovetail.inspect.units import Unit, time_unit

_SHOWN = {"saved": 3, "recomputed": 2, "in place": 2, "copied": 2, "donated": 2}
_TIMES_SHOWN = 6
_LAYERS_SHOWN = 12
_NOISY = 1.25  # the upper end of the interval over the lower one
_TITLES = {"saved": "saved for backward", "donated": "donated"}
_MEANING = {
    "saved": "Values that forward saves for backward. Bytes: what would be free otherwise.",
    "recomputed": "Values that backward recomputes, so that they need not be saved.",
    "in place": "Results written over an operand that is no longer read. Bytes: allocations avoided.",
    "copied": "Remaining copies. Bytes: moved without computing anything new.",
    "donated": "Inputs that the caller donated. Bytes: results in their memory.",
}
_KEYS = "memory at the peak; arrow keys move, Enter goes in, Escape goes out"
_BY = (("module", "module"), ("layer", "repeated layer"), ("line", "source line"), ("operator", "operator"))
_SIMULATED = (
    "Both are simulated from the recorded operators: a tensor lives from the operator that computes it to the last one "
    "that reads it, results live to the end. Eager also keeps what Python variables hold for longer. Scratch memory "
    "inside operators is in neither."
)


# --- how much -------------------------------------------------------------------------------------------------------


def need(explanation: ExplanationData, moment: Moment, unit: Unit) -> Iterator[str]:
    """What eager needs, and what this needs."""
    ours, eager = moment.total_bytes, explanation.eager
    parts = category_sums(moment)
    most = max(ours, eager.total_bytes if eager is not None else 0)
    yield "<h2>How much memory?</h2>"
    yield f'<p class="verdict"><b>{escape(unit.text(ours))}</b> at the peak'
    if eager is not None:
        yield f", {escape(_compared(ours, eager.total_bytes, unit))}"
    yield '</p><div class="bars">'
    if eager is not None:
        yield _need_row("eager", eager.parts, eager.total_bytes, most, unit)
    yield _need_row("dovetail", parts, ours, most, unit)
    yield "</div>"
    known = dict.fromkeys([*(c for c, _ in parts), *(c for c, _ in (eager.parts if eager is not None else ()))])
    keys = [text.swatch(category) for category in CATEGORIES if category in known]
    yield f'<p class="legend">{"".join(keys)}</p>'
    yield f'<p class="quiet">{escape(_what_is_counted(explanation, moment, unit))}</p>'


def _need_row(label: str, parts: Sequence[tuple[str, int]], total: int, most: int, unit: Unit) -> str:
    told = ", ".join(f"{category} {unit.text(amount)}" for category, amount in parts)
    return (
        f'<span class="label">{label}</span><span title="{escape(told)}">{text.mixed_bar(parts, most)}</span>'
        f'<span class="number" title="{total:,} bytes">{escape(unit.text(total))}</span>'
    )


def category_sums(moment: Moment) -> tuple[tuple[str, int], ...]:
    """Bytes by category at a moment, in the order of the categories; they add up to all of it."""
    found = {branch.label: branch.size for branch in group(moment.holders, "category").children}
    return tuple((category, found[category]) for category in CATEGORIES if found.get(category))


def _compared(ours: int, eager: int, unit: Unit) -> str:
    if ours == eager:
        return "as in eager mode"
    percent = f"{100 * abs(eager - ours) / eager:.1f} %" if eager else "all of it"
    word = "less" if ours < eager else "more"
    return f"{unit.text(abs(eager - ours))} ({percent}) {word} than eager mode"


def _what_is_counted(explanation: ExplanationData, moment: Moment, unit: Unit) -> str:
    there, made = unit.text(moment.resident_bytes), unit.text(moment.made_bytes)
    words = f"{there} exists before the call (weights, state, arguments), {made} is allocated by it. "
    if explanation.eager is None:
        return words + "Simulated; the recorded program is not available here, so there is nothing to compare with."
    return words + _SIMULATED


# --- who ------------------------------------------------------------------------------------------------------------


def holders(moment: Moment, unit: Unit) -> Iterator[str]:
    """The tree map, and without the script a table of layers."""
    yield '<h2>Who holds it at the peak?</h2><div class="bar-of-tools"><div class="tabs" role="tablist">'
    for place, (by, label) in enumerate(_BY):
        yield f'<button role="tab" aria-selected="{str(not place).lower()}" data-by="{by}">{label}</button>'
    yield '</div><nav class="crumbs" aria-label="where in the map"></nav></div>'
    yield f'<div class="treemap" role="group" aria-label="{_KEYS}"></div><div class="parts">'
    tree = group(moment.holders, "layer")
    yield text.table(("layer", f"#{unit.name}", "#share"), _branch_rows(tree, tree.size, unit)) + "</div>"


def _branch_rows(tree: Branch, total: int, unit: Unit) -> Iterator[str]:
    for branch in tree.children[:_LAYERS_SHOWN]:
        label = f"<td><code>{escape(branch.label)}</code></td>"
        yield text.row([label, text.number(branch.size, unit), text.share(branch.size, total)])
    rest = [*(b.size for b in tree.children[_LAYERS_SHOWN:]), *(holder.bytes for holder in tree.holders)]
    if rest:
        rest_bytes = sum(rest)
        yield text.row([f"<td>{len(rest):,} more</td>", text.number(rest_bytes, unit), text.share(rest_bytes, total)])


# --- what was decided -----------------------------------------------------------------------------------------------


def decisions(explanation: ExplanationData, unit: Unit) -> Iterator[str]:
    """Groups of equal decisions by kind; each opens to its rows."""
    yield "<h2>What was decided, and why?</h2>"
    groups = group_decisions(explanation.decisions, layers_of(explanation))
    for kind in kinds_in(explanation.decisions):
        found = [one for one in groups if one.kind == kind]
        total, count = sum(one.bytes for one in found), sum(one.count for one in found)
        yield f'<div class="kind" id="{text.anchor(kind)}"><h3 title="{escape(_MEANING[kind])}">'
        amount = f"<b>{escape(unit.text(total))}</b>" if count else "nothing"
        values = f'<span class="quiet">{count:,} value{"" if count == 1 else "s"}</span>' if count else ""
        yield f"{_TITLES.get(kind, kind)} {amount} {values}</h3>"
        first = [one for one in found if one.bytes][: _SHOWN[kind]]
        shown = set(map(id, first))
        rest = [one for one in found if id(one) not in shown]
        yield from (_decision_group(one, explanation, unit) for one in first)
        if rest:
            left = sum(one.bytes for one in rest)
            groups_text = f"{len(rest):,} more group{'' if len(rest) == 1 else 's'}, {unit.text(left)}"
            yield f'<details class="more"><summary>{escape(groups_text)}</summary>'
            yield from (_decision_group(one, explanation, unit) for one in rest)
            yield "</details>"
        yield "</div>"


def _decision_group(one: DecisionGroup, explanation: ExplanationData, unit: Unit) -> str:
    amounts = escape(unit.text(one.bytes))
    if one.count > 1:
        amounts = f'<span class="quiet">{escape(unit.text(one.bytes_each))} each</span> {amounts}'
    where = f'<code class="layer">{escape(one.layer)}</code>' if one.layer else ""
    rows = (
        text.row(
            [
                text.number(one_row.bytes, unit),
                text.code(one_row.name),
                f"<td>{escape(one_row.detail)}</td>",
                text.line(one_row.origin, explanation.lines),
            ]
        )
        for one_row in one.rows
    )
    operator = one.operator or "input"
    head = (f"#{unit.name}", "name", "detail", "line")
    return (
        f'<details class="group"><summary><span class="what"><b>{one.count:,} &times;</b> '
        f'<code>{escape(operator)}</code> {where}</span><span class="amounts">{amounts}</span>'
        f'<span class="why">{escape(one.why)}</span></summary>'
        f'<p><span class="reason">{escape(one.code)}</span></p>'
        f'<div class="scroll">{text.table(head, rows)}</div></details>'
    )


# --- where the time goes --------------------------------------------------------------------------------------------


def time(explanation: ExplanationData) -> Iterator[str]:
    """Times by layer next to eager's, or how to have them measured."""
    yield "<h2>Where does the time go?</h2>"
    found = explanation.time
    if found is None:
        yield "<p>Not measured. <code>dovetail.explain(..., measure_time=True)</code> and "
        yield "<code>dovetail explain DUMP --html FILE --measure-time</code> run the program next to eager mode.</p>"
        return
    if found.ratio is None:
        yield f"<p>It could not run on random inputs: {escape(found.failure)}</p>"
        return
    unit = time_unit(max(found.eager_ns, found.compiled_ns))
    ours, eager = unit.text(found.compiled_ns), unit.text(found.eager_ns)
    ratio = found.ratio
    yield f'<p class="verdict"><b>{escape(ours)}</b>, {ratio.median:.2f}x eager mode\'s {escape(eager)}</p>'
    yield f'<p class="quiet">Runs were taken in turn; 95 % interval of the ratio: {escape(ratio.spread)}.'
    if ratio.high > _NOISY * ratio.low:
        yield " The machine was busy: the times are rough."
    yield "</p>"
    yield from _time_groups(found, layers_of(explanation), unit)
    executors = _sums((row.executor, row.time_ns) for row in found.compiled)
    ordered = sorted(executors.items(), key=lambda item: -item[1])
    ran = ", ".join(f"{name} {unit.text(spent)}" for name, spent in ordered)
    yield f'<p class="quiet">Run by: {escape(ran)}. Both sides in turn, on random inputs of the same shapes. '
    yield "Operators only: the time that eager spends in Python and autograd between them is not counted.</p>"


def _time_groups(found: StepTime, layers: Layers, unit: Unit) -> Iterator[str]:
    sides = [_by_layer(side, layers) for side in (found.eager, found.compiled)]
    sums = [{layer: sum(inside.values()) for layer, inside in side.items()} for side in sides]
    names = sorted({*sums[0], *sums[1]}, key=lambda name: (-sums[1].get(name, 0), -sums[0].get(name, 0), name))
    most = max((side.get(name, 0) for side in sums for name in names), default=0)
    shown = [_time_group(name, sides, most, unit) for name in names]
    yield '<p class="head"><span>layer</span><span class="number">eager</span><span class="number">dovetail</span></p>'
    yield "".join(shown[:_TIMES_SHOWN])
    if len(shown) > _TIMES_SHOWN:
        left = sum(sums[1].get(name, 0) for name in names[_TIMES_SHOWN:])
        more = f"{len(shown) - _TIMES_SHOWN:,} more layers, {unit.text(left)}"
        yield f'<details class="more"><summary>{escape(more)}</summary>{"".join(shown[_TIMES_SHOWN:])}</details>'


def _time_group(layer: str, sides: Sequence[dict[str, dict[str, int]]], most: int, unit: Unit) -> str:
    eager, ours = (side.get(layer, {}) for side in sides)
    a, b = sum(eager.values()), sum(ours.values())
    operators = sorted({*eager, *ours}, key=lambda name: -ours.get(name, 0))
    rows = (
        text.row(
            [
                f"<td><code>{escape(name)}</code></td>",
                *(f'<td class="number">{escape(unit.text(side.get(name, 0)))}</td>' for side in (eager, ours)),
            ]
        )
        for name in operators
    )
    return (
        f'<details class="group times"><summary><code class="layer">{escape(layer or "(outside modules)")}</code>'
        f'<span class="number">{escape(unit.text(a))}</span><span class="number">{escape(unit.text(b))}</span>'
        f'<span class="two">{text.plain_bar(a, most, "eager")}{text.plain_bar(b, most, "ours")}</span></summary>'
        f"{text.table(('operator', '#eager', '#dovetail'), rows)}</details>"
    )


def _by_layer(rows: Sequence[OperatorTime], layers: Layers) -> dict[str, dict[str, int]]:
    """Nanoseconds by folded layer and operator."""
    found: dict[str, dict[str, int]] = {}
    for one in rows:
        inside = found.setdefault(layers.fold(one.origin.module), {})
        name = short_operator(one.operator).removesuffix("_")
        inside[name] = inside.get(name, 0) + one.time_ns
    return found


def _sums(pairs: Iterator[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, spent in pairs:
        found[name] = found.get(name, 0) + spent
    return found
