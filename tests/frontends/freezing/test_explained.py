"""Frozen modules are explained like compiled functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dovetail
from tests.frontends.freezing.models import Cache, Classifier

X = torch.rand(2, 3, 8, 8)


def test_a_frozen_module_is_explained(tmp_path: Path) -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(model, {"forward": ((X,), {}), "embed": ((X,), {})}, passes="fast")
    told = dovetail.explain(frozen)
    text = str(told)
    assert "fold_batch_norms" in text
    assert "fold_constants" in text
    assert told.name == "forward"
    assert dovetail.explain(frozen, torch.rand(1, 3, 8, 8)).name == "forward_1"
    assert dovetail.explain(frozen, X, method="embed").name == "embed"
    told.html(tmp_path / "report.html")
    assert "fold_batch_norms" in (tmp_path / "report.html").read_text()


def test_a_cache_is_written_without_a_copy_of_it() -> None:
    frozen = dovetail.freeze(Cache(64, 32), (torch.rand(1, 32), torch.tensor([0])), dynamic_shapes="static")
    (program,) = dovetail.explain(frozen).programs
    assert program.memory.peak_bytes < 64 * 32 * 4


def test_a_loaded_module_says_that_its_history_is_gone(tmp_path: Path) -> None:
    dovetail.freeze(Classifier().eval(), (X,)).save(tmp_path / "model.dovetail")
    with pytest.raises(dovetail.DovetailError, match="explain it where it is frozen"):
        dovetail.explain(dovetail.load(tmp_path / "model.dovetail"))
