"""Files for contents that leave memory for a while: private, without a name, and as large as they must be.

A file is unlinked as soon as it is open, so that nothing is left of it, whatever becomes of the process. Its space is
taken at once: a disk that is full shows before a step runs. Contents are read and written by calls that say what went
wrong; a mapped file would end the process where the disk fails.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import torch

from dovetail.errors import OffloadUnavailable


class SpillFile(Protocol):
    """Bytes by their place."""

    def write(self, contents: memoryview, at: int) -> None:
        """Write all of them. Raises: OSError."""

    def read(self, memory: memoryview, at: int) -> None:
        """Fill all of the memory. Raises: OSError."""

    def close(self) -> None:
        """Give the space back."""


class UnnamedFile:
    """See `SpillFile`."""

    def __init__(self, folder: str, size_bytes: int) -> None:
        """Raises: OffloadUnavailable."""
        self._number = -1
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # its mode is 0600
                self._number = os.dup(file.fileno())
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._number, 0, max(size_bytes, 1))
            else:
                os.truncate(self._number, size_bytes)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
            raise unavailable(folder, error, size_bytes) from error

    def write(self, contents: memoryview, at: int) -> None:
        """See `SpillFile`."""
        done = 0
        while done < len(contents):
            done += os.pwrite(self._number, contents[done:], at + done)

    def read(self, memory: memoryview, at: int) -> None:
        """See `SpillFile`."""
        done = 0
        while done < len(memory):
            count = os.preadv(self._number, [memory[done:]], at + done)
            if not count:
                raise OSError("the file ends before what was written to it")
            done += count

    def to_disk(self) -> None:
        """Wait until all is on the disk, and let the system forget it. Raises: OSError."""
        os.fsync(self._number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """See `SpillFile`."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


def unavailable(folder: str, error: OSError | ValueError, size_bytes: int = 0) -> OffloadUnavailable:
    """The error for a folder in which no file can be made."""
    wanted = f"a file of {size_bytes:,} bytes" if size_bytes else "a file"
    reason = getattr(error, "strerror", None) or error
    return OffloadUnavailable(folder=folder, wanted=wanted, error=f"{type(error).__name__}: {reason}")


# --- how fast they are ------------------------------------------------------------------------------------------------

_PROBE_BYTES = 32 * 1024**2
_CHUNK_BYTES = 2 * 1024**2
_PROBE_SIDE = 384


@dataclass(frozen=True, slots=True)
class Speed:
    """write_rate, read_rate: bytes a second of a file in a folder. flop_rate: floating-point operations a second."""

    write_rate: float
    read_rate: float
    flop_rate: float


_KNOWN: dict[str, Speed] = {}
_PROBING = threading.Lock()


def keep_speed(folder: str, speed: Speed | None) -> None:
    """Let this be what is known of a folder, instead of what would be measured; None: forget it."""
    if speed is None:
        _KNOWN.pop(os.path.realpath(folder), None)
    else:
        _KNOWN[os.path.realpath(folder)] = speed


def speed_of(folder: str) -> Speed:
    """How fast files in a folder are: measured once, and kept for the process. Raises: OffloadUnavailable.

    What is written is on the disk when the clock is stopped, and is read from there: the cache of the system may be
    faster, and may have no room.
    """
    key = os.path.realpath(folder)
    with _PROBING:
        if key not in _KNOWN:
            _KNOWN[key] = Speed(*_file_rates(folder), _flop_rate())
        return _KNOWN[key]


def _file_rates(folder: str) -> tuple[float, float]:
    contents = memoryview(os.urandom(_CHUNK_BYTES))
    memory = memoryview(bytearray(_CHUNK_BYTES))
    file = UnnamedFile(folder, _PROBE_BYTES)
    written, read = list[float](), list[float]()
    try:
        for _ in range(2):
            start = time.perf_counter()
            for at in range(0, _PROBE_BYTES, _CHUNK_BYTES):
                file.write(contents, at)
            file.to_disk()
            written.append(time.perf_counter() - start)
            start = time.perf_counter()
            for at in range(0, _PROBE_BYTES, _CHUNK_BYTES):
                file.read(memory, at)
            read.append(time.perf_counter() - start)
    except OSError as error:
        raise unavailable(folder, error, _PROBE_BYTES) from error
    finally:
        file.close()
    return _PROBE_BYTES / min(written), _PROBE_BYTES / min(read)


def _flop_rate() -> float:
    """Of a product of matrices, with as many threads as torch has."""
    a = torch.ones(_PROBE_SIDE, _PROBE_SIDE)
    seconds = list[float]()
    with torch.no_grad():
        for _ in range(4):
            start = time.perf_counter()
            torch.mm(a, a)
            seconds.append(time.perf_counter() - start)
    return 2 * _PROBE_SIDE**3 / min(seconds)
