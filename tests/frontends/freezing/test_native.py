"""Frozen programs with native code: made where they are frozen, and again where they are loaded; files have none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.execute.native import clusters
from tests.execute.native.programs import calls_counted

pytest.importorskip("llvmlite")


class _Rows(nn.Module):
    """Chains of elementwise operators between products, norms and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.narrow = nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(F.silu(self.wide(x)) * 1.5 + 0.25)
        return (torch.tanh(self.narrow(hidden)) + x).softmax(-1)


class _Images(nn.Module):
    """A convolution, and state that calls write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.mix = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        mixed = F.gelu(self.mix(x)) * self.seen.sum()
        return mixed.sigmoid() * mixed


@pytest.mark.parametrize("passes", ["bitwise", "fast"])
@pytest.mark.parametrize(("kind", "shape"), [(_Rows, (16,)), (_Images, (3, 8, 8))])
def test_native_code_of_frozen_and_loaded_programs(
    kind: type[nn.Module], shape: tuple[int, ...], passes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    answers = calls_counted(monkeypatch)
    monkeypatch.setattr(clusters, "cost_of_call", lambda *_, **__: 0.0)  # models as small as these need none
    model, path = kind().eval(), tmp_path / "m.dovetail"
    plain = dovetail.freeze(model, (torch.rand(3, *shape),), passes=passes, executors="aten")
    native = dovetail.freeze(model, (torch.rand(3, *shape),), passes=passes, executors=("native", "aten"))
    assert native.specialized == ()
    native.save(path)
    assert {Path(name).suffix for name in zipfile.ZipFile(path).namelist()} == {".json", ".py", ".safetensors"}
    loaded = dovetail.load(path, executors=("native", "aten"))
    without = dovetail.load(path, executors="aten")
    with torch.no_grad():
        for batch in (1, 2, 5, 17):
            x = torch.rand(batch, *shape)
            wanted, near = (model(x), 0.0) if passes == "bitwise" else (plain(x), 1e-6)
            for frozen in (native, loaded):
                answers.clear()
                torch.testing.assert_close(frozen(x), wanted, rtol=near, atol=near)
                assert answers.count(0) == len(answers) > 0
            answers.clear()
            assert torch.equal(without(x), wanted)
            assert not answers
