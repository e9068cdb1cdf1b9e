"""Writing a file so that readers of its path always find either the old file or the new one, complete.

The new file is a part, `.<name>.<random>.part`, in the same folder until it is complete and on the disk; then it takes
the name. An error removes the part. A process that is killed leaves it behind, and the next one that writes the same
path removes it: a part that is being written is locked, and the system lets go of the lock with the process.

Where files cannot be locked (some network file systems, Windows), parts of killed processes stay.
"""

from __future__ import annotations

import importlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dovetail.artifact.regular_file import open_regular
from dovetail.errors import BadSavePath

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # Windows
    fcntl = None

_LONGEST = 200  # bytes of the name that are in the name of its parts: most systems allow 255 in all
_SUFFIX = ".part"


@contextmanager
def replaced(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when nothing failed. A link is followed.

    Raises: BadSavePath for a path where no file can be made, before anything is written; OSError of the file system.
    """
    target = _target(path)
    _remove_left_parts(target)
    part, file = _new_part(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, target)  # while it is locked: no other process takes it for one that was left behind
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _settle(target.parent)


def _target(path: str | Path) -> Path:
    """Where the file is to lie, with links followed. Raises: BadSavePath."""
    try:
        target = Path(os.path.realpath(path))
        with suppress(FileNotFoundError):
            os.lstat(target)  # a name may be too long
        kind = stat.S_IFMT(os.stat(path).st_mode) if os.path.lexists(path) and os.path.exists(target) else stat.S_IFREG
        if os.path.islink(target):
            raise OSError("its symbolic links form a loop")
    except (OSError, ValueError) as error:
        raise BadSavePath(path=path, reason=error, hint="give the path of a file in a folder") from error
    if kind != stat.S_IFREG:
        what = "a folder" if kind == stat.S_IFDIR else "not a regular file"
        raise BadSavePath(
            path=path, reason=f"it is {what}", hint="give the path of a file, for instance model.dovetail"
        )
    if not target.parent.is_dir():
        hint = f"create the folder first: mkdir -p {target.parent}"
        raise BadSavePath(path=path, reason=f"there is no folder {target.parent}", hint=hint)
    return target


def _new_part(target: Path) -> tuple[Path, IO[bytes]]:
    """A part of its own, open and locked. Raises: BadSavePath."""
    while True:
        part = target.with_name(f"{_beginning(target)}{secrets.token_hex(8)}{_SUFFIX}")
        try:
            file = part.open("xb")
        except OSError as error:
            reason, hint = (
                f"{target.parent}: {error.strerror}",
                "give the path of a file in a folder that you may write to",
            )
            raise BadSavePath(path=target, reason=reason, hint=hint) from error
        if _is_locked(file) is not False and part.exists():
            return part, file
        file.close()  # another process took it for one that was left behind, between the two


def _beginning(target: Path) -> str:
    name = target.name
    while len(os.fsencode(name)) > _LONGEST:
        name = name[:-1]
    return f".{name}."


def _remove_left_parts(target: Path) -> None:
    """Remove parts that no process is writing."""
    if fcntl is None:
        return
    beginning = _beginning(target)
    try:
        names = [name for name in os.listdir(target.parent) if name.startswith(beginning)]
    except OSError:  # it may be written, and not listed
        return
    for name in names:
        middle = name.removeprefix(beginning).removesuffix(_SUFFIX)
        if name.endswith(_SUFFIX) and len(middle) == 16 and set(middle) <= set("0123456789abcdef"):
            _remove_if_left(target.with_name(name))


def _remove_if_left(part: Path) -> None:
    with suppress(OSError), open_regular(part) as file:
        if _is_locked(file):
            part.unlink()


def _is_locked(file: IO[bytes]) -> bool | None:
    """Whether this process has the lock of the file now. None where files cannot be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _settle(folder: Path) -> None:
    """Let the new name reach the disk, where folders can be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
