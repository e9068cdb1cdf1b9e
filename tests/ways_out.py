"""Errors whose way out a test follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dovetail.errors import DovetailError


@contextmanager
def refused(code: str, way: str) -> Iterator[None]:
    """The block is refused with a code, by an error that says this in its way out."""
    with pytest.raises(DovetailError) as caught:
        yield
    text = str(caught.value)
    assert text.startswith(code + " "), text
    assert way in next(line for line in text.splitlines() if line.startswith("  try")), text
