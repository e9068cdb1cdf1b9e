"""Numbers that are read together have one unit, and none of them is shown as nothing."""

from __future__ import annotations

import pytest

from dovetail.inspect.units import BYTE_UNITS, byte_unit, time_unit


@pytest.mark.parametrize(
    ("largest", "amount", "text"),
    [
        (0, 0, "0 B"),
        (9_999, 9_476, "9,476 B"),
        (10_000, 9_476, "9.5 kB"),
        (25_165_824, 25_165_824, "25.2 MB"),
        (1_234_500_000, 1_234_500_000, "1,234.5 MB"),
        (1_234_500_000, 1, "<0.1 MB"),
        (1_234_500_000, -1, ">-0.1 MB"),
        (1_234_500_000, 0, "0 MB"),
        (1_234_500_000, 49_999, "<0.1 MB"),
        (1_234_500_000, 50_000, "0.1 MB"),
        (80 * 2**30, 2**30, "1.1 GB"),
        (10**18, 10**18, "1,000,000.0 TB"),
    ],
)
def test_bytes(largest: int, amount: int, text: str) -> None:
    assert byte_unit(largest).text(amount) == text


def test_times() -> None:
    assert time_unit(9_000).text(9_000) == "9.0 us"
    assert time_unit(9_999_999).text(9_999_999) == "10,000.0 us"
    assert time_unit(2_000_000_000).text(1_000_000) == "1.0 ms"


def test_units_never_round_to_nothing_and_are_at_least_ten() -> None:
    for exponent in range(15):
        for amount in (10**exponent - 1, 10**exponent, 10**exponent + 1, 3 * 10**exponent):
            unit = byte_unit(amount)
            assert unit is BYTE_UNITS[0] or amount >= 10 * unit.size
            assert amount == 0 or unit.number(amount).strip("<.,0") != ""
