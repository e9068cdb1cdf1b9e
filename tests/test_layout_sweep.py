"""Nets of kernels that round by layout give eager's bits: a sample of the search, which goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dovetail.torch_compat import fake_layouts
from tests import layout_sweep
from tests.rotation import rotated


@pytest.mark.parametrize("seed", rotated(range(500), of=40))
def test_nets_of_kernels_that_mind_layout(seed: int) -> None:
    assert layout_sweep.failure(seed) == ""


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/2", "--first", "400"]
    assert layout_sweep.main([*arguments, "--programs", "1"]) == 0
    assert layout_sweep.main([*arguments, "--programs", "2"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (2, 401 + 2 * 2)


def test_a_wrong_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(fake_layouts._ELEMENTWISE, torch.ops.aten.elu_backward.default)
    monkeypatch.setattr(layout_sweep, "ACTIVATIONS", {"elu": torch.nn.functional.elu})
    state = layout_sweep.State(0)
    layout_sweep.search(state, 1, 60, 24, lambda now: None)
    assert state.failures
