"""Explanations of earlier compilations, from the folder that `DOVETAIL_DUMP` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.artifact.record_json import INTEGER, TEXT, Coding, read_plain, tuple_of
from dovetail.errors import BadArtifact, NothingToExplain
from dovetail.inspect.dump_folder import Compilation, DumpedStep, read_dump
from dovetail.inspect.explain import explanations_of
from dovetail.inspect.explanation import Explanation
from dovetail.partition.choose import PartitionReport, StepCost
from dovetail.passes.inplace_report import DonationRow, InplaceReport, InplaceRow
from dovetail.pipeline.compile_trace import Lowering, Step
from dovetail.pipeline.donation import DonationReport
from dovetail.pipeline.driver import StepRecord

_HINT = "a compilation that failed early has no steps `forward` and `backward`; compile again to see its error"


def explain_dump(folder: str | Path, *, allow: Iterable[str] = (), measure_time: bool = False) -> list[Explanation]:
    """One explanation for each compilation in a folder, or for the one whose folder it is.

    allow: operators of other packages that its programs may call, as in `dovetail.load`. measure_time: also run the
    programs on random inputs, next to eager mode.
    Raises: BadArtifact for a folder that is not a dump; NothingToExplain when no compilation in it has both halves.
    """
    compilations = read_dump(folder, allow=allow)
    lowerings = [_lowering(compilation) for compilation in compilations]
    found = explanations_of(lowerings, measure_time=measure_time)
    if not found:
        reasons = [step.reason for compilation in compilations for step in compilation.steps if step.reason]
        reason = f"its programs are not in it: {reasons[0]}" if reasons else "no compilation in it has both halves"
        raise NothingToExplain(what=str(folder), reason=reason, hint=_HINT)
    return found


def _lowering(compilation: Compilation) -> Lowering:
    steps = [_step(step) for step in compilation.steps]
    name = str(compilation.steps[0].facts.get("compilation") or compilation.folder.name.partition("-")[2])
    hints = compilation.steps[0].hints if compilation.steps else {}
    return Lowering(name, hints, [step for step in steps if step is not None])


def _step(step: DumpedStep) -> Step | None:
    if step.program is None:
        return None
    written = step.facts.get("step")
    try:
        record = _record(written) if isinstance(written, Mapping) else None
    except (KeyError, ValueError) as error:
        expected = "a step of a compilation"
        raise BadArtifact(path=step.path, expected=expected, reason=error, hint="write the dump again") from error
    return Step(step.name, step.program, record)


def _record(written: Mapping[str, Any]) -> StepRecord:
    details = written.get("details")
    plain = {name: item for name, item in written.items() if name != "details"}
    report = _details(details) if isinstance(details, Mapping) else None
    record: StepRecord = read_plain(StepRecord, plain, details=report)
    return record


def _details(written: Mapping[str, Any]) -> object:
    """The report of a pass, where an explanation has rows for it."""
    if "rows" in written:
        rows = _rows(InplaceRow, written["rows"])
        return InplaceReport(rows, donations=_rows(DonationRow, written.get("donations", [])))
    if "offered" in written:
        offered = tuple_of(INTEGER).read(written["offered"])
        return DonationReport(offered, _rows(DonationRow, written["donations"]))
    if "solver" in written:
        costs = {name: read_plain(StepCost, written[name]) for name in ("default", "chosen")}
        texts = {name: TEXT.read(written[name]) for name in ("solver", "reason")}
        return PartitionReport(recomputed=INTEGER.read(written["recomputed"]), **costs, **texts)
    return None


def _rows(cls: type, written: Any) -> tuple[Any, ...]:
    rows: tuple[Any, ...] = tuple_of(Coding(asdict, partial(read_plain, cls))).read(written)
    return rows
