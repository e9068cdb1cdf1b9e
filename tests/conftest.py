"""Fixtures that several folders use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def alone() -> Iterator[None]:
    """Nothing compiled before, one thread (so that sums are split alike), and the generator given back."""
    torch.compiler.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    torch.compiler.reset()
