"""The search for wrong gradients finds planted ones, and computes values again at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.torch_compat.fakes import is_fake
from tests import recompute_sweep


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/2", "--first", "400"]
    assert recompute_sweep.main([*arguments, "--programs", "6"]) == 0
    assert recompute_sweep.main([*arguments, "--programs", "12"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (12, 401 + 2 * 12)
    assert found["again"] >= 4


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(recompute_sweep.STEPS, "dropout", lambda a, c, bias: a + is_fake(a))
    state = recompute_sweep.State(400)
    recompute_sweep.search(state, 1, 60, 12, lambda now: None)
    assert state.failures
    assert "differs" in capsys.readouterr().out or any("Error" in text for text in state.failures.values())


def test_a_limit_that_an_error_named_was_refused() -> None:
    assert recompute_sweep.failure(8830065)[0] == ""  # what was weighed was in another order than what ran
