"""The folder of `offload=`: whether it can be used, and what a plan has to know of it."""

from __future__ import annotations

import os

from dovetail.errors import BadOptionValue
from dovetail.execute.spill_file import UnnamedFile, speed_of
from dovetail.partition.whole.problem import File
from dovetail.partition.work import CPU


def check_folder(given: object, *, has_limit: bool) -> None:
    """Raise unless this can be given for the option `offload`. has_limit: beside a memory limit.

    Raises: BadOptionValue; OffloadUnavailable where no file can be made there.
    """
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise BadOptionValue(option="offload", value=given, reason="it is a folder", expected="a path")
    if not has_limit:
        reason = "without a limit everything stays in memory, and there is nothing to decide"
        raise BadOptionValue(option="offload", value=given, reason=reason, expected="it beside a memory_limit")
    UnnamedFile(os.fspath(given), 1).close()


def file_in(folder: str | os.PathLike[str] | None) -> File | None:
    """What a plan has to know of files in a folder, measured once. Raises: OffloadUnavailable."""
    if folder is None:
        return None
    speed = speed_of(os.fspath(folder))
    work_rate = speed.flop_rate / CPU.flops_per_byte
    return File(speed.write_rate / work_rate, speed.read_rate / work_rate)
