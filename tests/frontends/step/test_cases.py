"""Compiled steps agree with eager where arguments, results, state or the way of training are unusual.

What Python may do with numbers, and what is easily overlooked, is tried in part here; with DOVETAIL_EVERY_STEP=1, as
`make sweep` has it, in whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.frontends.step.agreement import Case, agree
from tests.frontends.step.cases.given import GIVEN
from tests.frontends.step.cases.kinds_of_state import KINDS_OF_STATE
from tests.frontends.step.cases.numbers import NUMBERS
from tests.frontends.step.cases.overlooked import OVERLOOKED
from tests.frontends.step.cases.ways import WAYS

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning"),  # further kinds of calls run in eager mode
]


def _some(cases: Sequence[Case], of: int) -> Sequence[Case]:
    return cases if os.environ.get("DOVETAIL_EVERY_STEP") else cases[::of]


@pytest.mark.parametrize("case", [*GIVEN, *KINDS_OF_STATE, *WAYS], ids=str)
def test_unusual_step(case: Case) -> None:
    agree(case, 8)


@pytest.mark.parametrize("case", _some(NUMBERS, 5), ids=str)
def test_numbers_in_python(case: Case) -> None:
    agree(case, 6)


@pytest.mark.parametrize("case", _some(OVERLOOKED, 3), ids=str)
def test_state_of_python(case: Case) -> None:
    agree(case, 9)
