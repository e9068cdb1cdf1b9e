"""Means of the channels of images as rows: near the exact ones, for vectors of both sizes and some threads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native import pixel_means
from dovetail.execute.native.machine import driver, function_of, has_vectors
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.pixel_means import pixel_mean_text
from dovetail.execute.native.rows import table_row
from dovetail.ops.panel_convolutions import PIXEL_MEAN
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("images", "channels", "size"),
    rotated([*product([1, 3], [1, 7, 16, 40, 64, 65, 200], [(1, 1), (1, 9), (5, 1), (7, 7), (40, 33)])], 16),
)
def test_sizes(lanes: int, images: int, channels: int, size: tuple[int, int]) -> None:
    if not has_vectors(lanes):
        pytest.skip("the processor has no such vectors")
    function = function_of(pixel_mean_text(lanes), "pixel_mean", ())
    assert function is not None
    x = (torch.randn(images, channels, *size) + 1).to(memory_format=torch.channels_last)
    memory = torch.full((images * channels + 1,), 7.0)
    more = torch.tensor([images, *size, channels]).numpy().tobytes() + _float(float(size[0] * size[1]))
    for threads in (1, 2):
        table = table_row(function, x.numel(), [memory.data_ptr(), x.data_ptr()], (), more)
        assert not driver()(table, 1, threads, 0)
        found = memory[:-1].view(images, channels)
        bound = (sum(size) + 2) * torch.finfo(torch.float32).eps / 2 * x.double().abs().mean((2, 3))
        assert ((found.double() - x.double().mean((2, 3))).abs() <= bound).all()
        assert memory[-1] == 7


def _float(number: float) -> bytes:
    return torch.tensor([number, 0.0]).numpy().tobytes()


class _Pooled(nn.Module):
    """Channels are scaled by what is computed from their means."""

    def __init__(self, dims: tuple[int, ...], *, keeps: bool) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 1))
        self.dims, self.keeps = dims, keeps

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).relu()
        means = x.mean(self.dims, self.keeps)
        made: Tensor = x * means.sigmoid() if self.keeps else means * 2
        return made


@pytest.mark.parametrize(
    ("dims", "keeps", "is_of_pixels"),
    [((2, 3), True, True), ((-1, -2), True, True), ((3, 2), False, True), ((1, 2), True, False), ((2,), True, False)],
)
def test_programs(dims: tuple[int, ...], keeps: bool, is_of_pixels: bool) -> None:
    model, x = _Pooled(dims, keeps=keeps).eval(), torch.randn(1, 3, 20, 24)
    frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
    for given in (x, x * float("inf")):
        torch.testing.assert_close(frozen(given), model(given), rtol=1e-4, atol=1e-5, equal_nan=True)
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    nodes = variant.runner.graph.forward.program.nodes
    assert any(node.target is PIXEL_MEAN for node in nodes) == is_of_pixels
    bitwise = dovetail.freeze(model, (x,), dynamic_shapes="static")
    assert torch.equal(bitwise(x), model(x))


def test_batches_that_vary() -> None:
    model = _Pooled((2, 3), keeps=True).eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 3, 20, 24),), passes="fast")
    for images in (1, 2, 5):
        x = torch.randn(images, 3, 20, 24)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)


class _Averaged(nn.Module):
    """Images are averaged by a pool, which is returned as it is, too."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.layer, self.pool = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)), pool

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made: Tensor = self.pool(self.layer(x))
        return made, made.flatten(1).relu()


@pytest.mark.parametrize(
    ("pool", "is_of_pixels"),
    [
        (nn.AvgPool2d(64, ceil_mode=True), True),
        (nn.AvgPool2d((20, 24)), True),
        (nn.AdaptiveAvgPool2d(1), True),
        (nn.AvgPool2d((20, 12)), False),
        (nn.AvgPool2d((20, 24), divisor_override=7), False),
        (nn.AvgPool2d((20, 22)), False),  # one part, but not the whole image
        (nn.AvgPool2d((22, 26), padding=1), False),
        (nn.AvgPool2d((22, 26), padding=1, count_include_pad=False), False),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_pools_of_whole_images(pool: nn.Module, is_of_pixels: bool, batch: int) -> None:
    model, x = _Averaged(pool).eval(), torch.randn(batch, 3, 20, 24)
    expected = model(x)
    for executors in (("auto", "aten"), ("native", "aten"), ("aten",)):
        frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static", executors=executors)
        for found, wanted in zip(frozen(x), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=True)
    frozen = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    nodes = variant.runner.graph.forward.program.nodes
    assert any(node.target is PIXEL_MEAN for node in nodes) == is_of_pixels


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("images", [1, 3])
def test_rows_of_large_images_are_added_up_by_a_row_of_their_own(
    keeps: bool, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, found = _Pooled((2, 3), keeps=keeps).eval(), torch.randn(images, 3, 70, 61), []
    for few in (8, 0):
        monkeypatch.setattr(pixel_means, "_FEW", few)
        frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
        former = torch.get_num_threads()
        for threads in (1, 2):
            try:
                torch.set_num_threads(threads)
                found.append(frozen(x))
            finally:
                torch.set_num_threads(former)
    assert all(torch.equal(found[0], each) for each in found)
    with torch.no_grad():
        torch.testing.assert_close(found[0], model(x), rtol=1e-5, atol=1e-5)
