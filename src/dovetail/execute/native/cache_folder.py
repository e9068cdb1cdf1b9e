"""A folder of small files that outlive the process: what probes found, and object code.

Object code is executed, so the folder is a trust boundary. It is used only if it belongs to the user that this process
runs as and nobody else may write to it, and the same holds for each file in it. A file says what it is, and carries a
checksum over its name and content: what is cut short, changed or renamed is not there.

Files are written under another name and renamed, so many processes can use a folder at once. Nothing here raises: where
the folder cannot be read or written, entries are missing, or not kept.

Cost: 50 us to read an entry, 100 us to write one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"dovetail native 1\n"
_ENDING = ".entry"
_UNFINISHED = ".part"
_STALE = 3600  # seconds after which nobody is still writing a file
_OFTEN = 32  # writes after which the size of the folder is looked at again
_LARGEST = 16 << 20
_DIGEST = 64  # hexadecimal digits
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Entry:
    """kind: "probe" or "kernel". what: for people. made_for: see `cache.made_for`. used: seconds since the epoch."""

    name: str
    kind: str
    what: str
    made_for: str
    size: int
    used: float


class CacheFolder:
    """The entries of one folder. most: bytes that they may take; those used longest ago go first."""

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self.most = most
        self._written = 0

    def problem(self) -> str:
        """Why entries are not read from the folder; "" where they are, and where there is no folder yet."""
        try:
            with self._opened():
                return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)

    def read(self, name: str) -> bytes | None:
        """What was kept under a name, if it is there and whole. It counts as used."""
        try:
            with self._opened() as folder:
                content = _content(folder, name, is_used=True)
        except OSError:
            return None
        return content[1] if content is not None else None

    def write(self, name: str, kind: str, what: str, made_for: str, payload: bytes) -> None:
        """Keep bytes under a name, which begins with letters and digits."""
        header = json.dumps({"kind": kind, "what": what, "made_for": made_for}).encode() + b"\n"
        content = b"".join((_MAGIC, header, _digest(name, header, payload), b"\n", payload))
        if len(content) > min(self.most, _LARGEST):
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            with self._opened() as folder:
                _write(folder, name + _ENDING, content)
                if self._written % _OFTEN == 0:
                    _trim(folder, self.most)
                self._written += 1

    def entries(self) -> list[Entry]:
        """All entries that could be read, those used last first."""
        found: list[Entry] = []
        with contextlib.suppress(OSError), self._opened() as folder:
            for used, size, file in _files(folder):
                name = file.removesuffix(_ENDING)
                content = _content(folder, name) if name != file else None
                if content is not None:
                    header = json.loads(content[0])
                    found.append(Entry(name, header["kind"], header["what"], header["made_for"], size, used))
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Remove all entries, those that cannot be read as well, and say how many."""
        count = 0
        with contextlib.suppress(OSError), self._opened() as folder:
            for _, _, file in _files(folder):
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=folder)
                    count += file.endswith(_ENDING)
        return count

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder. Raises: OSError, also where somebody else could write to it."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            reason = _distrusted(os.fstat(folder))
            if reason:
                raise PermissionError(0, reason)
            yield folder
        finally:
            os.close(folder)


def _distrusted(status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & _OTHERS_WRITE:
        return "others may write to it"
    return ""


def _digest(name: str, header: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((name.encode(), header, payload))).hexdigest().encode()


def _content(folder: int, name: str, *, is_used: bool = False) -> tuple[bytes, bytes] | None:
    """Header and payload of an entry; None where they are not as they were written, or by somebody else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(name + _ENDING, flags, dir_fd=folder)
    except OSError:
        return None
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or _distrusted(status) or status.st_size > _LARGEST:
            return None
        content = opened.read(_LARGEST + 1)
        if is_used:
            with contextlib.suppress(OSError):
                os.utime(file)
    if not content.startswith(_MAGIC):
        return None
    header, line, rest = content[len(_MAGIC) :].partition(b"\n")
    payload = rest[_DIGEST + 1 :]
    if rest[: _DIGEST + 1] != _digest(name, header + line, payload) + b"\n":
        return None
    return header, payload


def _write(folder: int, file: str, content: bytes) -> None:
    unfinished = f"{os.getpid()}-{secrets.token_hex(8)}{_UNFINISHED}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(unfinished, flags, 0o600, dir_fd=folder)
    try:
        with open(opened, "wb") as stream:
            stream.write(content)
        os.rename(unfinished, file, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


def _files(folder: int) -> list[tuple[float, int, str]]:
    """Time of last use, size and name of each file that is an entry, or was to become one."""
    found: list[tuple[float, int, str]] = []
    with os.scandir(folder) as listed:
        for item in listed:
            if item.name.endswith((_ENDING, _UNFINISHED)):
                with contextlib.suppress(OSError):  # another process has removed it
                    status = item.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, item.name))
    return found


def _trim(folder: int, most: int) -> None:
    """Remove what was used longest ago until the rest takes no more than that, and what was never finished."""
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    for used, size, file in files:
        is_stale = file.endswith(_UNFINISHED) and used < time.time() - _STALE
        if is_stale or (total > most and file.endswith(_ENDING)):
            with contextlib.suppress(OSError):
                os.unlink(file, dir_fd=folder)
                total -= size
