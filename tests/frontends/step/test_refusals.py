"""Steps that cannot become one program are refused with the user's line, and nothing has changed then."""

from __future__ import annotations

import pytest

from tests.frontends.step.cases.refusals import REFUSALS, Refusal
from tests.frontends.step.refusing import refused
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("case", rotated(REFUSALS, 2), ids=str)
def test_refused_with_the_line_and_without_a_trace(case: Refusal) -> None:
    refused(case)
