"""Checks of `torch_compat.profiler`."""

from __future__ import annotations

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


CHECKS = (check_record_allocator_events, check_profiler_is_active)
