"""Every stage of a compilation makes the program that it made before, through each front end."""

from __future__ import annotations

import pytest

from tests.replay.stages import CASES, digests, known
from tests.rotation import rotated
from tests.torch_release import IS_TESTED

pytestmark = pytest.mark.skipif(not IS_TESTED, reason="another torch records other operators")


def test_every_case_is_noted() -> None:
    assert sorted(known()) == sorted(CASES)


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize("case", rotated(CASES, 12))
def test_stages_are_as_they_were(case: str) -> None:
    note = "if they should differ: python -m tests.replay.stages --write, and say why in the commit"
    assert digests(case) == known()[case], note
