"""Which part of a long list of cases a run takes: another one each day, the same in every process of one run.

A list that is too long for `make test` is run in slices: every n-th case, beginning with another case each day.
`DOVETAIL_TEST_SEED` chooses the slices; without it they follow from the date. The header of pytest's output names the
seed, and so does its end where tests failed, so that any run can be repeated. `make sweep` runs the whole lists.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "DOVETAIL_TEST_SEED"
EVERYTHING = "DOVETAIL_TEST_EVERYTHING"

T = TypeVar("T")


def fix_seed() -> int:
    """The seed of this run, written to the environment for the processes that it starts.

    To be called once, before workers are started: a run that goes on past midnight keeps its seed.
    Raises: ValueError if the variable is set and is no number.
    """
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = str(datetime.datetime.now(tz=datetime.UTC).date().toordinal())
    return seed()


def seed() -> int:
    """The seed of this run, a number >= 0. Raises: ValueError if the variable is no such number."""
    text = os.environ[VARIABLE]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{VARIABLE} is {text!r}: a whole number that is not negative is needed")
    return int(text)


def everything() -> bool:
    """Whether whole lists are wanted instead of slices."""
    return os.environ.get(EVERYTHING, "0") not in ("", "0")


def rotated(cases: Sequence[T], of: int, shift: int = 0) -> list[T]:
    """One of `of` slices of a list. So many seeds in a row take every case once. shift: where the first one begins."""
    return list(cases) if everything() else list(cases[(seed() + shift) % of :: of])
