"""The search for wrong training steps goes on where it stopped, and says which case fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import step_sweep
from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.matrix import pairs
from tests.frontends.step.twins import Differs

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore")]


def test_a_search_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def agree(case: Case) -> None:
        seen.append(case.name)
        if len(seen) == 2:
            raise Differs(f"{case}: call 3: it is\n   not equal")

    monkeypatch.setattr(step_sweep, "agree", agree)
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/3"]
    assert step_sweep.main([*arguments, "--programs", "3"]) == 1
    assert step_sweep.main([*arguments, "--programs", "5"]) == 1
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (5, 1 + 3 * 5)
    assert found["failures"] == {seen[1]: f"Differs: {seen[1]}: call 3: it is / not equal"}
    assert seen == [step_sweep.case_at(1 + 3 * k).name for k in range(5)]
    assert f'--case "{seen[1]}"' in capsys.readouterr().out


def test_a_case_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Case] = []
    monkeypatch.setattr(step_sweep, "agree", seen.append)
    name = step_sweep.case_at(len(pairs()) + 5).name
    assert step_sweep.main(["--case", name]) == 0
    assert [case.name for case in seen] == [name]


def test_random_rows_follow_the_list() -> None:
    count = len(pairs())
    names = [step_sweep.case_at(count + k).name for k in range(30)]
    assert len(set(names)) > 25
    assert names == [step_sweep.case_at(count + k).name for k in range(30)]
