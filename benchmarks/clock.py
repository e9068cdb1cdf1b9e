"""Wall time and processor time of this process and of everything it started."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

# Places in /proc/<pid>/stat, counted from the first field after the name in parentheses.
_PARENT = 1
_TIMES = slice(11, 15)  # own user and system time, then that of children already waited for


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, on the wall clock and on the processor's."""

    wall_s: float
    cpu_s: float

    def __sub__(self, earlier: Instant) -> Instant:
        """Return the time that has passed since `earlier`."""
        return Instant(self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s)


def now(device: str = "cpu") -> Instant:
    """Wait for `device` to be idle and return the time.

    Processor time is user and system time of this process, of its children that have ended (a C++ compiler, say)
    and, on Linux, of all its descendants that still run (a pool of compiling processes).
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + _running_descendants_cpu_s()
    return Instant(time.perf_counter(), cpu_s)


def own_now(device: str = "cpu") -> Instant:
    """Like `now`, for this process alone: cheap enough to take around every step."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return Instant(time.perf_counter(), time.process_time())


def _running_descendants_cpu_s() -> float:
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        pid = int(path.parent.name)
        stats[pid] = fields
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    ticks = 0
    pending = list(children.get(os.getpid(), []))
    while pending:
        pid = pending.pop()
        ticks += sum(map(int, stats[pid][_TIMES]))
        pending.extend(children.get(pid, []))
    return ticks / os.sysconf("SC_CLK_TCK")
