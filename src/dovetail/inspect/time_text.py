"""Where the time of a program goes, next to eager's, as lines of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from dovetail.inspect.holders import short_operator
from dovetail.inspect.layers import Layers
from dovetail.inspect.step_time import OperatorTime, StepTime
from dovetail.inspect.units import Unit, time_unit

_MOST = 8


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
    yield from _table("layer", time, lambda row: layers.fold(row.origin.module) or "(outside modules)", unit)
    yield from _table("operator", time, lambda row: short_operator(row.operator).removesuffix("_"), unit)


def _table(title: str, time: StepTime, key: Callable[[OperatorTime], str], unit: Unit) -> Iterator[str]:
    ours, theirs = _sums(time.compiled, key), _sums(time.eager, key)
    total = sum(ours.values())
    yield f"  by {title}           eager"
    rows = sorted(ours, key=lambda label: -ours[label])
    for label in rows[:_MOST]:
        share = 100 * ours[label] / total if total else 0.0
        yield f"    {unit.number(ours[label]):>9} {unit.number(theirs[label]):>9}  {share:>3.0f} %  {label}"
    rest = rows[_MOST:]
    if rest:
        sums = (sum(found[label] for label in rest) for found in (ours, theirs))
        yield f"    {' '.join(f'{unit.number(sum_):>9}' for sum_ in sums)}         {len(rest):,} more"


def _sums(rows: tuple[OperatorTime, ...], key: Callable[[OperatorTime], str]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[key(row)] += row.time_ns
    return found
