"""What changes between two calls of a compiled step is seen, as eager sees it."""

from __future__ import annotations

import pytest

from tests.frontends.step.agreement import Case, agree
from tests.frontends.step.cases.changes import CHANGES
from tests.frontends.step.cases.reloads import RELOADS
from tests.rotation import rotated

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning"),  # further kinds of calls run in eager mode
]


@pytest.mark.parametrize("case", rotated([*CHANGES, *RELOADS], 4), ids=str)
def test_change_between_calls(case: Case) -> None:
    agree(case, 14)
