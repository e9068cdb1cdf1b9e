"""How a limit in bytes is written."""

from __future__ import annotations

import pytest

from dovetail.errors import BadOptionValue
from dovetail.pipeline.memory_limit import MemoryLimit, memory_limit, readable


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("6GiB", MemoryLimit(6 * 2**30)),
        (" 1.5 MiB ", MemoryLimit(3 * 2**19)),
        ("transient:2GB", MemoryLimit(2 * 10**9, is_transient=True)),
        ("transient: 12 kB", MemoryLimit(12_000, is_transient=True)),
        ("7B", MemoryLimit(7)),
        ("3TiB", MemoryLimit(3 * 2**40)),
        (123, MemoryLimit(123)),
    ],
)
def test_forms(given: object, expected: MemoryLimit) -> None:
    assert memory_limit(given) == expected


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("6", "not a number of bytes with a unit"),
        ("six GiB", "not a number of bytes with a unit"),
        ("9" * 5000 + "B", "not a number of bytes with a unit"),
        ("-6GiB", "not a number of bytes with a unit"),
        ("6 GiBs", "'GiBs' is not a unit"),
        ("6gb", "'gb' is not a unit"),
        ("0.1B", "nothing fits in it"),
        (0, "nothing fits in it"),
        (-1, "nothing fits in it"),
        (True, "it is a size"),
        (6.5, "it is a size"),
        ("persistent:6GiB", "not a number of bytes with a unit"),
    ],
)
def test_other_forms_are_refused(given: object, reason: str) -> None:
    with pytest.raises(BadOptionValue, match=reason) as caught:
        memory_limit(given)
    assert '"6GiB"' in str(caught.value)


def test_what_is_left() -> None:
    assert memory_limit("transient:5B").above(100) == 5
    assert memory_limit("5B").above(2) == 3
    assert memory_limit("5B").above(9) == -4
    assert str(memory_limit("transient:2048B")) == "transient:2.00 KiB"
    assert readable(12) == "12 B"
