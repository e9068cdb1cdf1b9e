"""Compiled steps agree with eager where arguments, results, state or the way of training are unusual."""

from __future__ import annotations

import pytest

from tests.frontends.step.agreement import Case, agree
from tests.frontends.step.cases.given import GIVEN
from tests.frontends.step.cases.kinds_of_state import KINDS_OF_STATE
from tests.frontends.step.cases.ways import WAYS

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("case", [*GIVEN, *KINDS_OF_STATE, *WAYS], ids=str)
def test_unusual_step(case: Case) -> None:
    agree(case, 12)
