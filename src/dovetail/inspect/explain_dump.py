"""Explanations of what was compiled earlier, from the folder that `DOVETAIL_DUMP` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import BadArtifact, NothingToExplain
from dovetail.inspect.dump_folder import Compilation, DumpedStep, read_dump
from dovetail.inspect.explain import explanations_of
from dovetail.inspect.explanation import Explanation
from dovetail.partition.choose import PartitionReport, StepCost
from dovetail.passes.inplace_report import DonationRow, InplaceReport, InplaceRow
from dovetail.pipeline.donation import DonationReport
from dovetail.pipeline.driver import StepRecord
from dovetail.pipeline.trail import Lowering, Step

_HINT = "a compilation has the steps `forward` and `backward` when it got that far; compile again to see its error"


def explain_dump(folder: str | Path) -> list[Explanation]:
    """One explanation for each compilation in a folder, or for the one whose folder it is.

    Raises: BadArtifact for a folder that is no dump; NothingToExplain when no compilation in it has both halves.
    """
    compilations = read_dump(folder)
    found = explanations_of([_lowering(compilation) for compilation in compilations])
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
    except (KeyError, TypeError) as error:
        expected = "a step of a compilation"
        raise BadArtifact(path=step.path, expected=expected, reason=error, hint="write the dump again") from error
    return Step(step.name, step.program, record)


def _record(written: Mapping[str, Any]) -> StepRecord:
    details = written.get("details")
    return StepRecord(**{**written, "details": _details(details) if isinstance(details, Mapping) else None})


def _details(written: Mapping[str, Any]) -> object:
    """The report of a pass, where an explanation has rows for it."""
    if "rows" in written:
        donations = tuple(DonationRow(**row) for row in written.get("donations", ()))
        return InplaceReport(tuple(InplaceRow(**row) for row in written["rows"]), donations=donations)
    if "offered" in written:
        return DonationReport(tuple(written["offered"]), tuple(DonationRow(**row) for row in written["donations"]))
    if "min_cut" in written:
        costs = {name: StepCost(**written[name]) for name in ("default", "min_cut")}
        return PartitionReport(again=written["again"], reason=written["reason"], **costs)
    return None
