"""Say what differs, in one sentence."""

from __future__ import annotations


def first_difference(*cases: tuple[str, object, object]) -> str | None:
    """The first of the cases `(what, found, wanted)` whose last two are unequal, as a sentence; None if all agree."""
    for what, found, wanted in cases:
        if found != wanted:
            return f"{what} is {found!r}, not {wanted!r}"
    return None
