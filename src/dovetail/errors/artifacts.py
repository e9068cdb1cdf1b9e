"""Errors about what is written to files and read from them."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class NotSerializable(DovetailError):
    """A program, or a call's arguments, holds something that cannot be written to a file."""

    code = "DT-ARTIFACT-001"
    summary = "{what} cannot be written to a file: {reason}."
    because = "files hold plain data only, no pickled objects"
    way_out = "{hint}"
    rows = ()


class BadArtifact(DovetailError):
    """A file is not what dovetail writes, is damaged, or comes from another version."""

    code = "DT-ARTIFACT-002"
    summary = "{path} cannot be read as {expected}: {reason}."
    because = "only files that dovetail wrote are read, and nothing in them is executed"
    way_out = "{hint}"
    rows = ()


class OtherArtifactVersion(BadArtifact):
    """A file was written by a dovetail whose format this one does not read."""

    code = "DT-ARTIFACT-003"
    summary = "{path} is of format version {found}; this dovetail reads version {known}."
    because = "a file is read as it was meant or not at all"
    way_out = "save it again with this dovetail, or install the one that wrote it"
    rows = ()
