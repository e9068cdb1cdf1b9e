"""Bytes and times for people: one unit for figures that are read together, digits grouped by threes.

Units are decimal: 1 kB is 1,000 bytes, 1 MB is 1,000 kB. The unit is chosen from the largest number, so that numbers
that are compared have the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

_LEAST = 10  # of a unit: one decimal of 9.5 says less than 9,476 does


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit. size: in bytes or nanoseconds."""

    name: str
    size: int

    def number(self, amount: float) -> str:
        """The number alone: `1,234.5`; a part too small to show is `<0.1`, never `0.0`."""
        if self.size == 1:
            return f"{amount:,.0f}"
        scaled = amount / self.size
        if amount and abs(scaled) < 0.05:
            return "<0.1" if amount > 0 else ">-0.1"
        return f"{scaled:,.1f}" if amount else "0"

    def text(self, amount: float) -> str:
        """The number and the unit: `1,234.5 MB`."""
        return f"{self.number(amount)} {self.name}"


BYTE_UNITS = (Unit("B", 1), Unit("kB", 10**3), Unit("MB", 10**6), Unit("GB", 10**9), Unit("TB", 10**12))
TIME_UNITS = (Unit("us", 10**3), Unit("ms", 10**6), Unit("s", 10**9))


def byte_unit(largest: float) -> Unit:
    """The unit for numbers of bytes, the largest of which is given."""
    return _unit_for(BYTE_UNITS, largest)


def time_unit(largest_ns: float) -> Unit:
    """The unit for times in nanoseconds, the largest of which is given."""
    return _unit_for(TIME_UNITS, largest_ns)


def _unit_for(units: tuple[Unit, ...], largest: float) -> Unit:
    """The largest unit of which there are at least ten."""
    return next((unit for unit in reversed(units) if abs(largest) >= _LEAST * unit.size), units[0])
