"""What the peak is made of, by what was decided, and what lower limits would cost: a table, and a curve as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from dovetail.inspect import page_text as text
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.units import Unit, byte_unit
from dovetail.pipeline.peak_account import KINDS, MemoryAccount
from dovetail.pipeline.recompute import PlanPoint

_WIDTH, _HEIGHT, _EDGE = 400, 120, 8


def limits(explanation: ExplanationData) -> Iterator[str]:
    """The section."""
    yield "<h2>What is the peak made of, and what would less cost?</h2>"
    account = explanation.memory
    if account is None:
        yield "<p>Not known for a dump: it has no executors, and so not what operators take for themselves.</p>"
        return
    unit = byte_unit(account.peak_bytes)
    yield f'<p class="verdict"><b>{escape(unit.text(account.peak_bytes))}</b> above state and arguments</p>'
    yield text.table(("what", f"#{unit.name}", "#share"), _sums(account, unit))
    yield f'<details class="more"><summary>{len(account.rows):,} rows by line</summary><div class="scroll">'
    yield text.table(("what", f"#{unit.name}", "#pieces", "#work", "line"), _rows(account, unit)) + "</div></details>"
    if account.curve:
        yield from _curve(account, unit)
    else:
        yield '<p class="quiet">What lower limits cost: <code>dovetail.explain(step, lower_limits=True)</code>, '
        yield "for a step that <code>compile_step</code> compiled.</p>"


def _sums(account: MemoryAccount, unit: Unit) -> Iterator[str]:
    for kind, amount in account.sums().items():
        label = f'<td title="{escape(KINDS[kind])}">{escape(kind)}</td>'
        yield text.row([label, text.number(amount, unit), text.share(amount, account.peak_bytes)])


def _rows(account: MemoryAccount, unit: Unit) -> Iterator[str]:
    for row in account.rows:
        work = f"{100 * row.work:.2f} %" if row.work else ""
        yield text.row(
            [
                f"<td>{escape(row.kind)}</td>",
                text.number(row.bytes, unit),
                f'<td class="number">{row.count:,}</td>',
                f'<td class="number">{work}</td>',
                text.code(row.line),
            ]
        )


def work_under(curve: Sequence[PlanPoint], limit_bytes: int) -> float | None:
    """The work of the cheapest plan under a limit, as a part of all work; None where there is none."""
    return min((point.work for point in curve if point.peak_bytes <= limit_bytes), default=None)


def _curve(account: MemoryAccount, unit: Unit) -> Iterator[str]:
    curve, now = account.curve, account.peak_bytes
    yield f"<p>{escape(' '.join(_told(account, unit)))}</p>"
    most_bytes, most_work = max(curve[-1].peak_bytes, now, 1), max(point.work for point in curve) or 1.0

    def place(peak_bytes: int, work: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
        return _EDGE + inner_width * peak_bytes / most_bytes, _EDGE + inner_height * (1 - work / most_work)

    path: list[str] = []
    for point in curve:
        x, y = place(point.peak_bytes, point.work)
        path.append(f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}")
    yield (
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="work of what runs again, by the limit">'
    )
    yield f'<path d="{"".join(path)}H{_WIDTH - _EDGE}"/>'
    for point in curve:
        x, y = place(point.peak_bytes, point.work)
        told = f"{unit.text(point.peak_bytes)}: {100 * point.work:.1f} % more work"
        is_now = ' class="now"' if point.peak_bytes == now else ""
        yield f'<circle{is_now} cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(told)}</title></circle>'
    yield "</svg>"
    yield text.table((f"#limit, {unit.name}", "#more work"), (_point(point, unit) for point in curve))


def _point(point: PlanPoint, unit: Unit) -> str:
    return text.row([text.number(point.peak_bytes, unit), f'<td class="number">{100 * point.work:.1f} %</td>'])


def _told(account: MemoryAccount, unit: Unit) -> Iterator[str]:
    """What a little more buys, and what half costs."""
    curve, now = account.curve, account.peak_bytes
    here, more, half = (work_under(curve, limit) for limit in (now, now + unit.size, curve[-1].peak_bytes // 2))
    if here and more is not None:
        yield f"One more {unit.name} saves {100 * (here - more):.1f} % of work."
    whole = unit.text(curve[-1].peak_bytes)
    if half is None:
        yield f"Half of {whole}, which is needed as it is, is below the lowest plan, {unit.text(curve[0].peak_bytes)}."
    else:
        yield f"Half of {whole}, which is needed as it is, costs {100 * half:.1f} % more work."
