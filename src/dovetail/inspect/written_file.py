"""Write a report to a file, with a clear error if that fails."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from dovetail.errors import BadOptionValue, ReportNotWritten


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write text as UTF-8; what has no form in it (a file name that is not a text, say) becomes `?`.

    Raises: BadOptionValue; ReportNotWritten when the file cannot be written; folders are not made.
    """
    given: object = path
    if not isinstance(given, str | PathLike):
        raise BadOptionValue(option="path", value=given, reason="reports are written to a file", expected="its path")
    try:
        Path(path).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportNotWritten(path=str(path), reason=error.strerror or str(error)) from error
    except ValueError as error:  # a path with a NUL in it
        raise ReportNotWritten(path=str(path), reason=str(error)) from error
