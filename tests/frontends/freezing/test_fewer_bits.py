"""Frozen programs that multiply in fewer bits: files, other weights, processors that cannot, models without gain."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadOptionValue, FrozenElsewhere
from dovetail.inspect.frozen_file import inspect_file
from dovetail.pipeline.freezing import chosen_passes
from dovetail.torch_compat import onednn_low_precision

SUPPORTED = {
    "int8": onednn_low_precision.multiplies_int8(),
    "bf16": onednn_low_precision.multiplies_bfloat16(),
}
FAR = {"int8": 0.02, "bf16": 0.01}


@pytest.fixture(params=SUPPORTED)
def kind(request: pytest.FixtureRequest) -> str:
    if not SUPPORTED[request.param]:
        pytest.skip(f"this processor does not multiply {request.param}")
    torch.manual_seed(0)
    return str(request.param)


class Block(nn.Module):
    """A transformer's feed-forward part, large enough to gain."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.wide, self.narrow = nn.Linear(256, 768), nn.Linear(768, 256)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def _far(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_close_to_eager_in_every_form(kind: str, tmp_path: Path) -> None:
    model, x = Block().eval(), torch.randn(3, 5, 256)
    frozen = dovetail.freeze(model, (x,), passes=kind)
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    plain = dovetail.load(tmp_path / "model.dovetail", prepack=False)
    for rows in (3, 4, 1, 40):
        x = torch.randn(rows, 5, 256)
        with torch.no_grad():
            eager = model(x)
        found = frozen(x)
        assert found.stride() == eager.stride()
        assert 1e-5 < _far(found, eager) < FAR[kind]
        assert torch.equal(loaded(x), found)
        assert torch.equal(copy.deepcopy(frozen)(x), found)
        assert _far(plain(x), eager) < FAR[kind]


def test_a_file_holds_the_few_bits(kind: str, tmp_path: Path) -> None:
    model, x = Block().eval(), torch.randn(2, 256)
    sizes = {}
    for passes in ("fast", kind):
        dovetail.freeze(model, (x,), passes=passes).save(tmp_path / f"{passes}.dovetail")
        sizes[passes] = (tmp_path / f"{passes}.dovetail").stat().st_size
    assert sizes[kind] < sizes["fast"] * {"int8": 0.32, "bf16": 0.55}[kind]


def test_other_weights_are_rounded_anew(kind: str, tmp_path: Path) -> None:
    model, other, x = Block().eval(), Block().eval(), torch.randn(2, 256)
    frozen = dovetail.freeze(model, (x,), passes=kind)
    frozen.save(tmp_path / "model.dovetail")
    expected = dovetail.freeze(other, (x,), passes=kind)(x)
    for program in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        program.swap_weights(other.state_dict())
        assert torch.equal(program(x), expected)


def test_originals_can_be_discarded(kind: str, tmp_path: Path) -> None:
    model, x = Block().eval(), torch.randn(2, 256)
    size_bytes = sum(weight.numel() * 4 for weight in model.parameters())
    expected = dovetail.freeze(copy.deepcopy(model), (x,), passes=kind)(x)
    frozen = dovetail.freeze(model, (x,), passes=kind, discard_originals=True)
    assert torch.equal(frozen(x), expected)
    assert frozen.constant_bytes() < 0.6 * size_bytes
    frozen.save(tmp_path / "model.dovetail")
    assert torch.equal(dovetail.load(tmp_path / "model.dovetail")(x), expected)


def test_it_is_explained(kind: str) -> None:
    frozen = dovetail.freeze(Block().eval(), (torch.randn(2, 256),), passes=kind)
    says = {"int8": "2 products in int8", "bf16": "2 products and convolutions in bfloat16"}
    assert says[kind] in str(dovetail.explain(frozen))


@pytest.mark.usefixtures("kind")
def test_a_model_that_gains_nothing_is_refused(kind: str) -> None:
    model = nn.Linear(8, 8)
    with pytest.raises(BadOptionValue, match="no layer of this model would compute in fewer bits") as caught:
        dovetail.freeze(model, (torch.randn(2, 8),), passes=kind, discard_originals=True)
    assert "SMALL: a product by [8, 8]" in str(caught.value)
    assert model(torch.ones(2, 8)).shape == (2, 8)  # nothing was discarded
    assert dovetail.freeze(model, (torch.randn(2, 8),), passes=kind, skip=("quantize", "narrow"))


PROBES = {"int8": "multiplies_int8", "bf16": "multiplies_bfloat16"}


@pytest.mark.parametrize("passes", ["int8", "bf16", ["quantize"], ["prepack", "narrow"]])
def test_a_processor_without_it_is_refused(passes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROBES.values():
        monkeypatch.setattr(onednn_low_precision, name, lambda: False)
    with pytest.raises(BadOptionValue, match=r"VNNI|AVX512_BF16") as caught:
        dovetail.freeze(Block(), (torch.randn(2, 256),), passes=passes)
    assert 'give "fast"' in str(caught.value)
    assert dovetail.freeze(Block().eval(), (torch.randn(2, 256),), passes="fast")


@pytest.mark.skipif(not SUPPORTED["int8"], reason="this processor has no exact products of 8-bit integers")
def test_a_file_is_refused_where_products_would_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.dovetail"
    dovetail.freeze(Block().eval(), (torch.randn(2, 256),), passes="int8").save(path)
    monkeypatch.setattr(onednn_low_precision, "multiplies_int8", lambda: False)
    with pytest.raises(FrozenElsewhere, match="VNNI"):
        dovetail.load(path)
    assert inspect_file(path).methods[0].name == "forward"  # looking at it needs nothing


def test_fast_keeps_the_bits_that_it_has() -> None:
    assert not {"quantize", "narrow"} & {*chosen_passes("fast"), *chosen_passes("bitwise")}
    for wish, name in (("int8", "quantize"), ("bf16", "narrow")):
        if SUPPORTED[wish]:
            assert set(chosen_passes(wish)) == {*chosen_passes("fast"), name}
