"""Memory events of the allocators of the CPU and of GPUs, read from torch's profiler.

The profiler of `torch.autograd` is public, but the one table that names each block by its address (the event tree) is
not, and its start and stop print trace lines of their own to standard error. Both facts stay in this file. That of
`torch.profiler` is the same behind more: its start imports all of inductor, more than half a second and 35 MB.

There can be one such profiler at a time. The one before it, which is still in torch, belongs to a thread: it records on
a thread of its own while another profiler is active, and neither notices.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
from torch._C._profiler import ProfilerConfig, ProfilerState, _EventType, _ExperimentalConfig
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler import profile

_Result = TypeVar("_Result")
_NOISE = b"USDT:"
_STDERR_FD = 2


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One block taken from (positive size) or given back to (negative size) an allocator."""

    time_ns: int
    address: int
    size_bytes: int


def profiler_is_active() -> bool:
    """Whether a profiler runs, of any thread: another one would end it."""
    return bool(_profiler_enabled()) or bool(autograd_profiler._is_profiler_enabled)


def record_allocator_events(
    fn: Callable[[], _Result], kinds: Collection[str] = ("cpu",)
) -> tuple[_Result, list[AllocatorEvent]]:
    """Call `fn` and return its result with every allocator event of the call, in order of time.

    kinds: of devices whose allocators are listened to, of "cpu" and "cuda".

    The profiler knows the size of a block only when it saw the block being taken. Blocks that were live before
    the call and are given back during it are therefore missing from the list, or, when an earlier recording left
    its address behind, present with a stale size. The caller must ignore addresses that it has not seen taken.
    """
    recorder = profile(use_cpu=True, profile_memory=True, use_kineto=True)
    with _without_trace_lines():
        recorder.__enter__()
    try:
        result = fn()
    finally:
        with _without_trace_lines():
            recorder.__exit__(None, None, None)
    return result, _read_allocator_events(recorder, kinds)


def record_allocator_events_apart(
    fn: Callable[[], _Result], kinds: Collection[str] = ("cpu",)
) -> tuple[_Result, list[AllocatorEvent]]:
    """Like `record_allocator_events`, on a thread of its own: for when a profiler of somebody else is active.

    Only what that thread does is recorded. Blocks of one size are told apart by an invented address.
    """
    done: list[tuple[_Result, Any]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            torch.get_num_threads()  # makes it that of the process, for libraries that read it themselves
            _enable_profiler_legacy(_memory_only())
            try:
                result = fn()
            finally:
                records = _disable_profiler_legacy()
            done.append((result, records))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="dovetail allocator events")
    thread.start()
    try:
        thread.join()
    finally:
        thread.join()  # an interrupt waits for what runs
    if failed:
        raise failed[0]
    result, records = done[0]
    blocks = [event for events in records for event in events if event.kind() == "memory_alloc"]
    sizes = [getattr(block, f"{kind}_memory_usage")() for block in blocks for kind in kinds]
    return result, list(_with_addresses(sizes))


def _memory_only() -> ProfilerConfig:
    """No shapes, stacks, operations or modules."""
    return ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())


def _with_addresses(sizes: Iterable[int]) -> Iterator[AllocatorEvent]:
    """Blocks of one size are given back in the order opposite to that in which they were taken, it is assumed."""
    taken: defaultdict[int, list[int]] = defaultdict(list)
    for time, size in enumerate(sizes):
        if size > 0:
            taken[size].append(time)
            yield AllocatorEvent(time, time, size)
        elif size and taken[-size]:
            yield AllocatorEvent(time, taken[-size].pop(), size)
        # else it was taken before, or from another allocator


def _read_allocator_events(recorder: profile, kinds: Collection[str]) -> list[AllocatorEvent]:
    kept: Any = recorder.kineto_results
    assert kept is not None, "the profiler kept no events"
    events: list[AllocatorEvent] = []
    pending: list[Any] = list(kept.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.typed[0] == _EventType.Allocation:
            block = event.typed[1]
            if block.device.type in kinds:
                events.append(AllocatorEvent(event.start_time_ns, block.ptr, block.alloc_size))
    # The walk above visits later siblings first; reversed, equal times keep the order of the call.
    events.reverse()
    events.sort(key=lambda event: event.time_ns)
    return events


@contextmanager
def _without_trace_lines() -> Iterator[None]:
    """Drop the profiler's own trace lines from standard error, and pass every other line on."""
    try:
        saved_fd = os.dup(_STDERR_FD)
    except OSError:  # standard error is closed: there is nothing to keep clean
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), _STDERR_FD)
        try:
            yield
        finally:
            os.dup2(saved_fd, _STDERR_FD)
            os.close(saved_fd)
            captured.seek(0)
            for line in captured:
                if not line.startswith(_NOISE):
                    os.write(_STDERR_FD, line)


def self_check() -> str | None:
    """Return None when the event tree still reports exact sizes, else one sentence saying what differs."""

    def allocate_and_free() -> None:
        torch.empty(256, dtype=torch.uint8, device="cpu")

    _, events = record_allocator_events(allocate_and_free)
    sizes = [event.size_bytes for event in events]
    if sizes != [256, -256]:
        return f"the profiler reported {sizes} for one block of 256 bytes"
    return None
