"""Real text that any machine has: the source of Python's own standard library, as bytes."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

_MAX_TEXT_BYTES = 4 << 20


def read_standard_library(max_bytes: int = _MAX_TEXT_BYTES) -> Tensor:
    """Return the top-level modules of the standard library, sorted by name and joined, as u8[bytes].

    The same Python gives the same text. At most `max_bytes` are read.
    """
    parts: list[bytes] = []
    size_bytes = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        part = path.read_bytes()[: max_bytes - size_bytes]
        parts.append(part)
        size_bytes += len(part)
        if size_bytes >= max_bytes:
            break
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


def sample_batches(text: Tensor, count: int, batch: int, time: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `count` pairs (tokens, next tokens), each i64[batch, time], from places that `seed` decides.

    A generator of its own picks the places, so drawing data never moves the global random state.
    """
    places = torch.Generator().manual_seed(seed)
    offsets = torch.arange(time + 1)
    for _ in range(count):
        starts = torch.randint(len(text) - time - 1, (batch, 1), generator=places)
        window = text[starts + offsets].long()
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
