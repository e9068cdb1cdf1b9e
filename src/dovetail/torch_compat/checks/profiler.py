"""Checks of `torch_compat.profiler`."""

from __future__ import annotations

from dovetail.torch_compat import profiler


def check_record_allocator_events() -> str | None:
    """The allocator's events tell the exact size of each block."""
    return profiler.self_check()


CHECKS = (check_record_allocator_events,)
