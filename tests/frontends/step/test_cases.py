"""Compiled steps agree with eager where arguments, results, state or the way of training are unusual.

What Python may do with numbers, and what is easily overlooked, is tried in slices that rotate (`tests.rotation`);
`make sweep` runs all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.frontends.step.agreement import Case, agree
from tests.frontends.step.cases.given import GIVEN
from tests.frontends.step.cases.kinds_of_state import KINDS_OF_STATE
from tests.frontends.step.cases.numbers import NUMBERS
from tests.frontends.step.cases.overlooked import OVERLOOKED
from tests.frontends.step.cases.ways import WAYS
from tests.rotation import rotated

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning"),  # further kinds of calls run in eager mode
]


def _some(cases: Sequence[Case], of: int) -> list[Any]:
    return [pytest.param(case, id=case.name) for case in rotated(cases, of)]


@pytest.mark.parametrize("case", _some([*GIVEN, *KINDS_OF_STATE, *WAYS], 5))
def test_unusual_step(case: Case) -> None:
    agree(case, 8)


@pytest.mark.parametrize("case", _some(NUMBERS, 16))
def test_numbers_in_python(case: Case) -> None:
    agree(case, 6)


@pytest.mark.parametrize("case", _some(OVERLOOKED, 8))
def test_state_of_python(case: Case) -> None:
    agree(case, 9)
