"""Checksums over large buffers, in several threads: zlib and hashlib let other threads run while they compute.

A CRC is the remainder of the bytes, read as a polynomial over two elements. That of two buffers in a row follows from
those of each: the first is multiplied by x to the number of bits that follow, and added. So pieces are summed
separately.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

PIECE = 16 << 20
_MOST_THREADS = 4
_POLYNOMIAL = 0xEDB88320  # of CRC-32, the coefficient of x^0 in the highest bit
_ONE, _X = 1 << 31, 1 << 30


def crc32s(buffers: Sequence[memoryview]) -> list[int]:
    """The CRC-32 of each buffer. Cost: one pass over the bytes, shared by up to four threads from 32 MiB on."""
    pieces = [
        (number, buffer[at : at + PIECE])
        for number, buffer in enumerate(buffers)
        for at in range(0, len(buffer), PIECE)
    ]
    sums = [0] * len(buffers)
    for (number, piece), crc in zip(pieces, _in_threads(zlib.crc32, [piece for _, piece in pieces]), strict=True):
        sums[number] = joined(sums[number], crc, len(piece))
    return sums


def sha256s(buffers: Sequence[memoryview]) -> list[str]:
    """The SHA-256 of each buffer, in hexadecimal. Cost: one pass over the bytes, a buffer to a thread."""
    return _in_threads(_sha256, list(buffers))


def joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of two buffers in a row, from that of each and the length of the second in bytes."""
    return _times(first, _power(8 * length)) ^ second


def _sha256(buffer: memoryview) -> str:
    return hashlib.sha256(buffer).hexdigest()


def _in_threads(function: Callable[[memoryview], T], buffers: Sequence[memoryview]) -> list[T]:
    total = sum(map(len, buffers))
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(buffers))
    if total < 2 * PIECE or threads < 2:
        return list(map(function, buffers))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, buffers))


@functools.lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x to this power, modulo the polynomial."""
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result


def _times(a: int, b: int) -> int:
    """The product of two polynomials, modulo the polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
