"""A sample of the search over what scripts do beside arithmetic, which goes on where it stopped and notices wrongs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import construct_sweep
from tests.rotation import rotated


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", rotated(range(600), of=30))
def test_programs_are_as_in_eager_mode(seed: int) -> None:
    kind, what = construct_sweep.outcome(seed)
    assert kind != "wrong", what


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/2", "--first", "400"]
    assert construct_sweep.main([*arguments, "--programs", "1"]) == 0
    assert construct_sweep.main([*arguments, "--programs", "2"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (2, 401 + 2 * 2)


def test_wrong_results_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    doors = dict.fromkeys(construct_sweep.DOORS, lambda call: lambda *args: [x * 1.0 for x in call(*args)][:1])
    monkeypatch.setattr(construct_sweep, "DOORS_BY_NAME", doors)
    assert "wrong" in {construct_sweep.outcome(seed)[0] for seed in range(12)}
