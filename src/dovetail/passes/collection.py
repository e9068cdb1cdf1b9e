"""Python's cyclic garbage collector, out of the way of a pass.

A pass over a long program makes hundreds of thousands of small objects, none of them garbage, and the collector looks
at all of them again and again: a fifth to a quarter of the time of re-inplacing 20,000 nodes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Let no cyclic garbage be collected inside; also a decorator."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
