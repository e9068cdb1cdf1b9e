"""Standing in for torch's default CPU generator while a program is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.random


@contextlib.contextmanager
def replaced_default_generator(substitute: Any) -> Iterator[None]:
    """While active, torch's Python functions on the CPU generator state (`get_rng_state`, `fork_rng`,
    `manual_seed`, ...) talk to `substitute`, which needs the methods of `torch.Generator` that they use."""
    before = torch.random.default_generator
    torch.random.default_generator = substitute
    try:
        yield
    finally:
        torch.random.default_generator = before


def default_generator() -> torch.Generator:
    """Torch's generator for CPU draws."""
    return torch.default_generator
