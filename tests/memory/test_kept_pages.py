"""Memory that the C library keeps for the next call."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.memory.kept_pages import MOST, keep_pages

_FAULTS = """
import ctypes, resource
from dovetail.memory import kept_pages
library = kept_pages._library()
if library is None:
    raise SystemExit(3)
def call():
    blocks = [library.malloc(100 << 10) for _ in range(40)]  # smaller than what is mapped by itself
    for block in blocks:
        ctypes.memset(block, 1, 100 << 10)
    for block in blocks:
        library.free(block)
def faults():
    call()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start) / 10
before = faults()
kept_pages.keep_pages(4 << 20)
print(before, faults())
"""


def test_calls_find_the_pages_of_former_ones() -> None:
    found = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        pytest.skip("the C library is another one")
    before, after = map(float, found.stdout.split())
    assert after <= 10
    assert before > after or before <= 10  # what the system has as its usual limits


@pytest.mark.parametrize("size", [-1, 0, 1, MOST, 1 << 60])
def test_sizes_without_effect(size: int) -> None:
    keep_pages(size)
