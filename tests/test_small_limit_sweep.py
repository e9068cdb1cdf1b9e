"""The search for small programs that limits change goes on where it stopped, and tells wrong bits and high peaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.torch_compat.fakes import is_fake
from tests import recompute_sweep, small_limit_sweep

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore")]


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/2", "--first", "500"]
    assert small_limit_sweep.main([*arguments, "--programs", "2"]) == 0
    assert small_limit_sweep.main([*arguments, "--programs", "3"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (3, 501 + 2 * 3)


@pytest.mark.parametrize("seed", [1000, 1001])
def test_a_step_and_a_function_run_under_limits(seed: int) -> None:
    assert small_limit_sweep.failure(seed) == ("", True)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(9300071, id="the order of a later backward"),
        pytest.param(9300175, id="the same, by the bytes of one number"),
    ],
)
def test_limits_that_were_passed(seed: int) -> None:
    assert small_limit_sweep.failure(seed)[0] == ""


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = small_limit_sweep.State(402)
    monkeypatch.setitem(recompute_sweep.STEPS, "dropout", lambda a, c, bias: a + is_fake(a))
    small_limit_sweep.search(state, 1, 60, 1, lambda now: None)
    assert any("differs" in text for text in state.failures.values())


def test_a_peak_above_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_limit_sweep.calls_of

    def without_limit(seed: int, options: dict[str, Any] | None) -> small_limit_sweep.Run:
        return made(seed, options if options is None else {"partition": "default"})

    monkeypatch.setattr(small_limit_sweep, "calls_of", without_limit)
    assert any("the peak is" in small_limit_sweep.failure(seed)[0] for seed in range(1000, 1004))
