"""Random worlds that programs read: no change is missed; and the search notices when one is."""

from __future__ import annotations

import random

import pytest

from dovetail.reach.guards import PythonGuards
from tests import reads_sweep


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", [0, 1], ids=["functions", "steps"])
def test_random_worlds(first: int) -> None:
    outcomes = {seed: reads_sweep.try_seed(seed) for seed in range(30_000 + first, 30_040, 2)}
    wrong = {seed: outcome for seed, outcome in outcomes.items() if not outcome.startswith("refused")}
    assert {seed: outcome for seed, outcome in wrong.items() if outcome} == {}
    assert len(wrong) >= 15


def test_a_world_is_another_one_after_a_change() -> None:
    for seed in range(200):
        world = reads_sweep.World(random.Random(seed))
        before = world.read()
        world.disturb()
        assert world.read() == before
        world.change()
        assert world.read() != before


@pytest.mark.usefixtures("alone")
def test_a_guard_that_always_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonGuards, "holds", lambda _: True)
    assert "and eager" in reads_sweep.try_seed(30_000)
