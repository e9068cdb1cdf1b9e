"""The search for wrong steps under limits goes on where it stopped, and tells a peak above the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import limit_sweep
from tests.frontends.step.cases.matrix import pairs

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore")]


def test_a_search_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def try_row(number: int, state: limit_sweep.State) -> None:
        seen.append(number)
        state.limits += 2
        if len(seen) == 2:
            raise limit_sweep.OverLimit("the peak is 9,\n   the limit 8")

    monkeypatch.setattr(limit_sweep, "try_row", try_row)
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/3"]
    assert limit_sweep.main([*arguments, "--programs", "3"]) == 1
    assert limit_sweep.main([*arguments, "--programs", "5"]) == 1
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"], found["limits"]) == (5, 1 + 3 * 5, 10)
    assert seen == [1, 4, 7, 10, 13]
    assert list(found["failures"].values()) == ["OverLimit: the peak is 9, / the limit 8"]
    assert "--row 4: " in capsys.readouterr().out


def test_every_row_of_the_list_comes_once() -> None:
    count = len(pairs())
    assert len({limit_sweep.place_of(number) for number in range(count)}) == count


def test_a_row_runs_under_limits() -> None:
    state = limit_sweep.State(0)
    limit_sweep.try_row(0, state)
    assert state.limits == 2


def test_a_peak_above_the_limit_is_told() -> None:
    with pytest.raises(limit_sweep.OverLimit):
        limit_sweep.measure(limit_sweep.case_of_row(0), 1, limit_sweep.State(0))
