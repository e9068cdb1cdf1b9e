"""Errors of planning memory."""

from __future__ import annotations

from dovetail.errors.base import DovetailError, DovetailWarning


class InvalidPlacement(DovetailError):
    """Buffers do not lie in an arena as they must: a bug in a solver, or fixed offsets that cannot be kept."""

    code = "DT-INTERNAL-004"
    summary = "the arena of {program} breaks a rule: {rule}."
    because = "{detail}"
    way_out = "give fixed offsets that leave room for each other; where none were given, this is a bug in dovetail"
    rows = ()


class OffloadUnavailable(DovetailError):
    """No file can be made in the folder that `offload=` names; nothing ran."""

    code = "DT-MEMORY-002"
    summary = "{wanted} cannot be made in the folder {folder}, which offload= names."
    because = "{error}"
    way_out = "name a folder on a disk with room that this process may write to, or leave offload= out"
    rows = ()


class OffloadFailed(DovetailError):
    """Contents could not be written to the file of `offload=`, or read from it; nothing of the step was written."""

    code = "DT-MEMORY-003"
    summary = "the step could not {action} {value} ({size} bytes) {where} the file in {folder}."
    because = "{error}; parameters, optimizer state and generators are as they were before the call"
    way_out = "call it again once the disk is all right, name another folder, or leave offload= out"
    rows = ("origin",)


class OffloadFailedLate(DovetailWarning):
    """Contents could not be written to the file of `offload=` when the step had begun to write its state.

    They stayed in memory, so that the results are right, and more memory was used than the limit says.
    """
