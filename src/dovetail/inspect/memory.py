"""Measure the exact peak of tensor memory that one call needs.

On the CPU every block that the allocator allocates or frees during the call is recorded, so the answer is
exact to the byte and the same on every machine. On CUDA the caching allocator keeps the count itself.

Source: the allocator events of `torch.profiler(profile_memory=True)`; `torch.cuda.max_memory_allocated`.
Cost:   the recorder slows a call down by some microseconds per operator: measure memory and time separately.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.torch_compat.profiler import AllocatorEvent, record_allocator_events


@dataclass(frozen=True, slots=True)
class PeakReport:
    """What one call took from the allocator, in bytes above the level at which it started.

    Attributes:
        peak_bytes: the highest number of bytes that were live at the same time.
        allocated_bytes: the sum of all blocks that were taken, whether given back or not.
        end_bytes: what is still live after the call: its result, and state it left behind (gradients, say).
        result: what the call returned.
        live_bytes: the level after each event, in order of time; empty on CUDA, which keeps no history.
    """

    peak_bytes: int
    allocated_bytes: int
    end_bytes: int
    result: Any
    live_bytes: tuple[int, ...] = ()


def measure_peak(fn: Callable[..., Any], *args: Any, device: torch.device | str = "cpu") -> PeakReport:
    """Call `fn(*args)` once and report the exact peak of tensor memory above what was live before.

    Args:
        fn: the callable to measure. Warm it up first where its first call compiles.
        args: handed to `fn` as they are; not counted, as they are live already.
        device: where to look, `"cpu"` or a CUDA device.

    Returns:
        A `PeakReport`. It holds the result of the call, and with it the result's memory.

    Not checked: memory that was live before the call and is freed by it is not credited on the CPU, since the
    allocator does not say how large such a block was. Drop old gradients before measuring a training step.
    """
    gc.collect()
    chosen = torch.device(device)
    if chosen.type == "cuda":
        return _measure_cuda(fn, args, chosen)
    result, events = record_allocator_events(lambda: fn(*args))
    return _summarize(result, events)


def _summarize(result: Any, events: Iterable[AllocatorEvent]) -> PeakReport:
    taken: dict[int, int] = {}
    live = peak = allocated = 0
    levels: list[int] = []
    for event in events:
        if event.size_bytes > 0:
            taken[event.address] = event.size_bytes
            live += event.size_bytes
            allocated += event.size_bytes
        elif event.address in taken:
            live -= taken.pop(event.address)
        else:  # taken before the call: see "Not checked" above
            continue
        peak = max(peak, live)
        levels.append(live)
    return PeakReport(peak, allocated, live, result, tuple(levels))


def _measure_cuda(fn: Callable[..., Any], args: tuple[Any, ...], device: torch.device) -> PeakReport:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    live_before = torch.cuda.memory_allocated(device)
    total_before = _cuda_total_bytes(device)
    result = fn(*args)
    torch.cuda.synchronize(device)
    return PeakReport(
        peak_bytes=torch.cuda.max_memory_allocated(device) - live_before,
        allocated_bytes=_cuda_total_bytes(device) - total_before,
        end_bytes=torch.cuda.memory_allocated(device) - live_before,
        result=result,
    )


def _cuda_total_bytes(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))
