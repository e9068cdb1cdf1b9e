"""The search over architectures: what it compares, and that it notices a difference."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import model_page, model_sweep
from tests.architectures import batch, listed, model
from tests.searching import ON_PATH

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.usefixtures("alone")
def test_an_architecture_is_the_same_through_two_doors() -> None:
    assert model_sweep.verdicts_of("causal", "olmo2", ("step", "freeze")) == {"step": "same", "freeze": "same"}


def test_a_difference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(step: Any) -> Any:
        def run() -> torch.Tensor:
            loss: torch.Tensor = step()
            return loss * 1.001

        return run

    monkeypatch.setattr(model_sweep, "_compiled", shifted)
    assert "more differ" in model_sweep.verdicts_of("causal", "olmo2", ("step",))["step"]


def test_a_model_that_eager_cannot_train_is_no_failure_of_a_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_sweep, "batch", lambda task, _: batch(task) | {"labels": torch.zeros(1)})
    assert model_sweep.verdicts_of("causal", "olmo2", ("step",))["step"].startswith("eager mode fails")


def test_a_search_goes_on_where_it_stopped_and_tries_again_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def verdicts_of(task: str, name: str, doors: tuple[str, ...]) -> dict[str, str]:
        tried.append(name)
        return dict.fromkeys(doors, "refused: why" if name == "b" and tried.count("b") == 1 else "same")

    monkeypatch.setattr(model_sweep, "listed", lambda: [("causal", "a"), ("causal", "b"), ("image", "c")])
    monkeypatch.setattr(model_sweep, "verdicts_of", verdicts_of)
    state, page = ["--state", str(tmp_path / "state.json")], tmp_path / "models.md"
    assert model_sweep.main([*state, "--programs", "2"]) == 1
    assert model_sweep.main([*state, "--tasks", "causal"]) == 1
    assert tried == ["a", "b"]
    assert model_sweep.main([*state, "--again", "refused"]) == 0
    assert tried == ["a", "b", "b", "c"]
    assert model_sweep.main([*state, "--page", str(page)]) == 0
    verdicts, versions = model_page.read(page.read_text())
    assert list(verdicts) == ["causal a", "causal b", "image c"]
    assert versions["torch"] == torch.__version__
    assert "3 models, 0 verdicts that are not the same" in capsys.readouterr().out


def test_models_are_small_and_each_is_listed_once() -> None:
    cases = listed()
    assert len(set(cases)) == len(cases)
    assert sum(tensor.numel() for tensor in model("masked", "bert").parameters()) < 100_000


def test_timm_is_imported_where_torchvision_is_not_installed_and_leaves_nothing_of_it() -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    script = """
import sys, importlib.util, torch
from tests.timm_alone import timm
assert timm().create_model("test_resnet", num_classes=5)(torch.randn(2, 3, 64, 64)).shape == (2, 5)
is_there = importlib.util.find_spec("torchvision") is not None
assert is_there or not [name for name in sys.modules if name.startswith("torchvision")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=ON_PATH)
