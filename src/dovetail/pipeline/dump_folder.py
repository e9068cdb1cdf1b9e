"""The folder of `dump=`: whether it can be used, and a clear error where something cannot be written into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dovetail.errors import DumpNotWritten


def check_folder(given: str | os.PathLike[str]) -> None:
    """Raise DumpNotWritten unless folders can be made there, as far as that can be told without making one."""
    path = os.path.abspath(os.fspath(given))
    with clear_errors(path):
        nearest = Path(path)
        while not os.path.lexists(nearest):
            nearest = nearest.parent
        if not nearest.is_dir():
            raise DumpNotWritten(path=path, reason=f"{nearest} is no folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise DumpNotWritten(path=path, reason=f"{nearest} is not writable")


@contextlib.contextmanager
def clear_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever the system says against writing there is raised as DumpNotWritten."""
    try:
        yield
    except OSError as error:
        raise DumpNotWritten(path=str(path), reason=error.strerror or str(error)) from error
    except ValueError as error:  # a path with a NUL in it
        raise DumpNotWritten(path=str(path), reason=str(error)) from error
