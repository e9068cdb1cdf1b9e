"""Errors about reports that cannot be made or written."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class ReportNotWritten(DovetailError):
    """The file of a report cannot be written."""

    code = "DT-REPORT-001"
    summary = "the report cannot be written to {path}: {reason}."
    because = "the folder has to exist, and the file must be one that you may write"
    way_out = "name a file in a folder that exists"
    rows = ()


class NothingToExplain(DovetailError):
    """The target was called for an explanation, and no program came out of it."""

    code = "DT-REPORT-002"
    summary = "there is nothing to explain about {what}."
    because = "{reason}"
    way_out = "{hint}"
    rows = ()
