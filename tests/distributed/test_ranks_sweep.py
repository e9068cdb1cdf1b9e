"""Models on ranks train as in eager mode: some of what `tests.ranks_sweep` tries, for fewer steps."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks
from tests.ranks_sweep import CASES, KINDS, Sizes, failure_of, outcome_of
from tests.rotation import rotated

_STEPS, _SIZES = 4, Sizes(blocks=1)


@pytest.mark.parametrize(("model", "kind"), rotated([case for case in CASES if KINDS[case[1]] == 2], 19))
def test_models_on_two_ranks_train_as_in_eager_mode(two_ranks: Ranks, model: str, kind: str) -> None:
    outcomes = two_ranks(outcome_of, model, kind, _STEPS, _SIZES, seconds=180)
    assert not failure_of(outcomes)
    assert all(outcome.eager_calls <= 2 for outcome in outcomes)
