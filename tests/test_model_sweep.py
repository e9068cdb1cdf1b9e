"""The search over architectures: what it compares, and that it notices a difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import model_sweep
from tests.architectures import batch, listed, model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.usefixtures("alone")
def test_an_architecture_is_the_same_through_two_doors() -> None:
    assert model_sweep.verdicts_of("causal", "olmo2", ("step", "freeze")) == {"step": "same", "freeze": "same"}


def test_a_difference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(step: Any, net: torch.nn.Module) -> Any:
        with torch.no_grad():
            next(net.parameters()).mul_(1.001)
        return step

    monkeypatch.setattr(model_sweep, "_by_step", shifted)
    assert "more differ" in model_sweep.verdicts_of("causal", "olmo2", ("step",))["step"]


def test_a_model_that_eager_cannot_train_is_no_failure_of_a_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_sweep, "batch", lambda task: batch(task) | {"labels": torch.zeros(1)})
    assert model_sweep.verdicts_of("causal", "olmo2", ("step",))["step"].startswith("eager mode fails")


def test_the_page(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = model_sweep.State(1, verdicts={"causal a": {"backend": "same", "step": "refused: why", "freeze": "same"}})
    page = model_sweep.page(state)
    assert "| causal a | = | refused | = |" in page
    assert "- causal a, step: refused: why" in page
    assert "`step`: 0 of 1" in page


def test_models_are_small_and_each_is_listed_once() -> None:
    cases = listed()
    assert len(set(cases)) == len(cases)
    assert sum(tensor.numel() for tensor in model("masked", "bert").parameters()) < 100_000
