"""Random programs with donated inputs give what eager gives; and the search notices what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.pipeline import donation as offers
from tests import donation_sweep


@pytest.mark.usefixtures("alone")
def test_random_programs(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--first", "20000"]
    assert donation_sweep.main([*arguments, "--programs", "20"]) == 0
    assert donation_sweep.main([*arguments, "--programs", "40"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (40, 20040)
    assert found["offered"] > 30
    assert found["used"] > 5
    assert found["refused"] >= 7


@pytest.mark.usefixtures("alone")
def test_results_in_memory_that_is_handed_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_why_not", lambda *_: None)
    assert _finds_failures(donation_sweep.State(20000))


@pytest.mark.usefixtures("alone")
def test_memory_that_others_see_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.pipeline.alias_graphs.refuse_sharing", lambda *_: None)
    assert _finds_failures(donation_sweep.State(20006), step=7)  # arguments that share memory


def _finds_failures(state: donation_sweep.State, step: int = 1) -> bool:
    while not state.failures and state.tried < 300:
        donation_sweep.search(state, step, 60, state.tried + 5)
    return bool(state.failures)
