"""Images are resampled for any batch, and any size, with eager's bits and strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.usefixtures("alone")

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "nearest": (1, {"scale_factor": 2}),
    "linear": (1, {"scale_factor": 1.5}),
    "nearest-exact": (2, {"size": (5, 6)}),
    "bilinear": (2, {"scale_factor": (2, 0.7), "recompute_scale_factor": True}),
    "bicubic": (2, {"scale_factor": 1.5, "align_corners": True}),
    "trilinear": (3, {"scale_factor": 0.7}),
}


class Resampled(nn.Module):
    def __init__(self, mode: str, **options: Any) -> None:
        super().__init__()
        self.options = {"mode": mode, **options}

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x * 1.5, **self.options)


def _image(rank: int, batch: int, size: int = 8, *, last: bool = False) -> Tensor:
    image = torch.randn(batch, 3, *[size] * rank, generator=torch.Generator().manual_seed(batch))
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    return image.to(memory_format=formats.get(rank, torch.contiguous_format)) if last else image


def _agrees(called: Any, model: nn.Module, x: Tensor) -> None:
    found, wanted = called(x), model(x)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", KINDS)
def test_frozen_for_any_batch(mode: str, last: bool) -> None:
    rank, options = KINDS[mode]
    model = Resampled(mode, **options)
    frozen = dovetail.freeze(model, (_image(rank, 2, last=last),))
    assert frozen.specialized == ()
    for batch in (2, 5, 3):
        _agrees(frozen, model, _image(rank, batch, last=last))


@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"size": (7, 9)}, {"scale_factor": 2, "antialias": True}])
def test_frozen_for_any_size(options: dict[str, Any]) -> None:
    model = Resampled("bilinear", **options)
    shapes = {"x": {0: "batch", 2: "height", 3: "width"}}
    frozen = dovetail.freeze(model, (_image(2, 2),), dynamic_shapes=shapes)
    for batch, size in ((2, 8), (4, 11), (3, 5)):
        _agrees(frozen, model, _image(2, batch, size))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", KINDS)
def test_gradients_for_symbolic_sizes(mode: str, last: bool) -> None:
    rank, options = KINDS[mode]
    model = Resampled(mode, **options)
    compiled = dovetail.compile(model, dynamic=True)
    for batch in (2, 5):
        made = []
        for called in (model, compiled):
            x = _image(rank, batch, last=last).requires_grad_()
            result = called(x)
            result.backward(torch.ones_like(result).cumsum(0))
            made.append((result.detach(), x.grad))
        for wanted, found in zip(*made, strict=True):
            assert wanted is not None
            assert found is not None
            assert torch.equal(wanted, found)
            assert wanted.stride() == found.stride()
    assert len(compiled.graphs) == 1


def test_one_program_for_all_sizes_by_dynamo() -> None:
    model = Resampled("bilinear", scale_factor=2)
    compiled = torch.compile(model, backend="dovetail", dynamic=True)
    for batch, size in ((2, 8), (3, 9)):
        _agrees(compiled, model, _image(2, batch, size))


def test_a_size_that_eager_refuses_is_refused() -> None:
    model = Resampled("bilinear", size=(0, 4))
    with pytest.raises(RuntimeError, match="greater than 0"):
        model(_image(2, 2))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-CAPTURE-001.*test_resampling.py"):
        dovetail.freeze(model, (_image(2, 2),))
