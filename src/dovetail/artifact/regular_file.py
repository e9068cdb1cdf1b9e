"""Opening files that the user named: only regular ones, and without blocking.

Opening a FIFO waits for a writer, a device such as /dev/zero never ends, and opening some devices has side effects. So
the target of a path is checked before it is opened, without blocking, and again afterwards.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str | Path) -> None:
    """Raise OSError unless a path leads to a regular file; nothing is opened."""
    _check(os.stat(path))


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, open to be read.

    Raises: OSError for a path that leads nowhere or to anything else, at once; ValueError for what can be no path.
    """
    check_regular(path)
    binary, at_once = getattr(os, "O_BINARY", 0), getattr(os, "O_NONBLOCK", 0)  # each is known to some systems only
    descriptor = os.open(path, os.O_RDONLY | at_once | binary)
    try:
        _check(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most: int) -> bytes:
    """The contents of a regular file. Raises: as `open_regular`; ValueError for more than `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size} bytes, and at most {most} are read")
        return file.read()


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, not a regular file")
