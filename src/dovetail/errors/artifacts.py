"""Errors about files."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class NotSerializable(DovetailError):
    """A program, or the arguments of a call, contains something that cannot be written to a file."""

    code = "DT-ARTIFACT-001"
    summary = "{what} cannot be written to a file: {reason}."
    because = "files hold plain data only, no pickled objects"
    way_out = "{hint}"
    rows = ()


class BadSavePath(DovetailError):
    """A file cannot be written to this path."""

    code = "DT-ARTIFACT-005"
    summary = "{path} cannot be written: {reason}."
    because = "a file is written next to the one that it replaces, and only files are replaced"
    way_out = "{hint}"
    rows = ()


class BadArtifact(DovetailError):
    """A file was not written by dovetail, is damaged, or comes from another version."""

    code = "DT-ARTIFACT-002"
    summary = "{path} cannot be read as {expected}: {reason}."
    because = "dovetail reads only its own files, and executes nothing in them"
    way_out = "{hint}"
    rows = ()


class OtherArtifactVersion(BadArtifact):
    """A file has a format version that this dovetail does not read."""

    code = "DT-ARTIFACT-003"
    summary = "{path} has format version {found}; this dovetail reads version {known}."
    because = "dovetail does not guess at the meaning of another version's files"
    way_out = "save it again with this dovetail, or install the one that wrote it"
    rows = ()


class RefusedOperands(DovetailError):
    """A program from a file calls an operator with operands that torch itself would not check."""

    code = "DT-ARTIFACT-004"
    summary = "{operator} is not run: {reason}."
    because = "the program was read from a file, and torch's kernel would trust these operands"
    way_out = "run only files from sources you trust; save this one again from the model"
    rows = ()


class NoSampleInputs(DovetailError):
    """A program should run on random inputs, but no inputs of its sizes can be created."""

    code = "DT-ARTIFACT-006"
    summary = "no inputs can be created for program {program}: {reason}."
    because = "a program without recorded calls runs on random inputs of the sizes that it describes"
    way_out = "write the dump with DOVETAIL_DUMP_CALLS=1; use a smaller example if memory is too small"
    rows = ()
