"""Checks of `torch_compat.profiler`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import profiler
from dovetail.torch_compat.checks.difference import first_difference


def check_record_allocator_events() -> str | None:
    """The allocator's events tell the exact size of each block."""
    return profiler.self_check()


def check_profiler_is_active() -> str | None:
    """Recording shows while it lasts."""
    seen: list[bool] = []
    profiler.record_allocator_events(lambda: seen.append(profiler.profiler_is_active()))
    return first_difference(
        ("a profile that is recorded", seen, [True]), ("no profile", profiler.profiler_is_active(), False)
    )


def check_record_allocator_events_apart() -> str | None:
    """While another profile is recorded, blocks are seen on a thread of their own, and the other one ends as ever."""
    seen: list[list[int]] = []

    def allocate_and_free() -> None:
        torch.empty(256, dtype=torch.uint8, device="cpu")

    def record() -> None:
        _, events = profiler.record_allocator_events_apart(allocate_and_free)
        seen.append([event.size_bytes for event in events])

    _, others = profiler.record_allocator_events(record)
    return first_difference(
        ("blocks of the thread", seen, [[256, -256]]),
        ("blocks of the other profile", [x.size_bytes for x in others], []),
    )


CHECKS = (check_record_allocator_events, check_record_allocator_events_apart, check_profiler_is_active)
