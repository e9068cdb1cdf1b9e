"""Errors about reports."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class ReportNotWritten(DovetailError):
    """A report cannot be written to a file."""

    code = "DT-REPORT-001"
    summary = "the report cannot be written to {path}: {reason}."
    because = "the folder must exist and the file must be writable"
    way_out = "name a file in a folder that exists"
    rows = ()


class NothingToExplain(DovetailError):
    """Calling the target compiled no program, so there is nothing to explain."""

    code = "DT-REPORT-002"
    summary = "there is nothing to explain about {what}."
    because = "{reason}"
    way_out = "{hint}"
    rows = ()


class DumpNotWritten(DovetailError):
    """The folder that `dump=` or DOVETAIL_DUMP names cannot be written."""

    code = "DT-REPORT-003"
    summary = "the dump cannot be written to {path}: {reason}."
    because = "each compilation writes a folder there"
    way_out = "name a folder that can be made and written, or leave the dump out: option dump, or DOVETAIL_DUMP"
    rows = ()
