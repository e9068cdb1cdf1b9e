"""Convolutions as machine code: within the error of any order of additions, for tiles of both sizes."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native import convolutions
from dovetail.execute.native.convolutions import convolution_call, convolution_function, planned
from dovetail.execute.native.machine import driver
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import table_row
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.ops import few_products, panel_convolutions
from dovetail.ops.few_products import tiling_of
from dovetail.ops.packed import ACTIVATIONS, applied
from dovetail.ops.panel_convolutions import PACK_TAPS, PanelConv, plain_kernel
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

TILES = [
    pytest.param(NARROW, id="narrow"),
    pytest.param(
        WIDE, id="wide", marks=pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="AVX2")
    ),
]
_LARGEST_SLOPE, _OWN_ERROR = 1.2, 2e-6  # of an activation


def _check(
    tile: Tile,
    activation: str,
    image: tuple[int, int, int, int],
    weight_size: tuple[int, int, int, int],
    geometry: tuple[list[int], list[int]],
    *,
    has_bias: bool = True,
    adds: bool = False,
) -> None:
    (padding, stride), groups = geometry, image[1] // weight_size[1]
    x, weight = torch.randn(image), torch.randn(weight_size)
    bias = torch.randn(weight_size[0]) if has_bias else None
    taps: Any = PACK_TAPS(weight, groups)
    assert torch.equal(plain_kernel(taps, weight_size), weight)

    def exactly(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        more = None if bias is None else bias.double()
        return torch.convolution(x.double(), weight.double(), more, stride, padding, [1, 1], False, [0, 0], groups)

    exact = exactly(x, weight, bias)
    addend = torch.randn(exact.shape).to(memory_format=torch.channels_last) if adds else None
    sizes = exactly(x.abs(), weight.abs(), None if bias is None else bias.abs())
    exact, sizes = (exact, sizes) if addend is None else (exact + addend, sizes + addend.abs())
    call = convolution_call(PanelConv(activation), tile)
    for given in (x, x.to(memory_format=torch.channels_last)):
        found = call(given, taps, bias, weight_size, padding, stride, groups, addend)
        assert found.shape == exact.shape
        assert found.is_contiguous(memory_format=torch.channels_last)
        unit = torch.finfo(torch.float32).eps / 2
        terms = weight[0].numel() + 3
        bound = _LARGEST_SLOPE * terms * unit * sizes + (_OWN_ERROR if activation != "none" else 0)
        assert ((found.double() - applied(activation, exact.clone())).abs() <= bound).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("image", "outputs", "kernel", "padding", "stride"),
    rotated(
        [
            *product(
                [(1, 3, 17, 19), (2, 20, 9, 7), (1, 33, 8, 30), (3, 4, 5, 5), (1, 1, 6, 6)],
                [1, 15, 16, 17, 32, 40, 70],
                [(1, 1), (3, 3), (5, 3), (2, 4)],
                [[0, 0], [1, 1], [2, 0]],
                [[1, 1], [2, 2], [2, 1]],
            )
        ],
        12,
    ),
)
def test_sizes(
    tile: Tile,
    image: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    padding: list[int],
    stride: list[int],
) -> None:
    _check(tile, "none", image, (outputs, image[1], *kernel), (padding, stride))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "stride"),
    rotated(
        [
            *product(
                [2, 15, 16, 17, 40],
                [(1, 1), (3, 3), (5, 3), (2, 4), (4, 5)],
                [[0, 0], [1, 1], [2, 0], [2, 2], [3, 3]],
                [[1, 1], [2, 2], [3, 1]],
            )
        ],
        24,
    ),
)
def test_each_channel_by_itself(
    tile: Tile, channels: int, kernel: tuple[int, int], padding: list[int], stride: list[int]
) -> None:
    for has_bias in (True, False):
        size = (channels, 1, *kernel)
        _check(tile, "relu6", (2, channels, 11, 13), size, (padding, stride), has_bias=has_bias)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_and_addends(tile: Tile, activation: str) -> None:
    for adds, inputs in product((False, True), (20, 1)):
        _check(tile, activation, (2, 20, 9, 7), (20, inputs, 3, 3), ([1, 1], [1, 1]), adds=adds)
        _check(tile, activation, (2, 20, 9, 7), (40, 20, 1, 1), ([0, 0], [1, 1]), adds=adds, has_bias=False)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("image", "outputs", "kernel", "padding", "stride"),
    [
        ((3, 300, 4, 4), 40, (3, 3), [1, 1], [1, 1]),  # parts of lines, and tiles of several rows and images
        ((1, 8, 61, 70), 17, (5, 5), [2, 2], [1, 1]),  # several chunks of pixels, and lines that are summed together
        ((2, 600, 7, 5), 33, (1, 1), [0, 0], [2, 2]),
        ((1, 1, 3, 3), 1, (3, 3), [0, 0], [1, 1]),  # one pixel
    ],
)
@pytest.mark.parametrize("adds", [False, True])
def test_chunks_and_passes(
    tile: Tile,
    image: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    padding: list[int],
    stride: list[int],
    adds: bool,
) -> None:
    _check(tile, "relu", image, (outputs, image[1], *kernel), (padding, stride), adds=adds)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("padding", [[0, 0, 1, 1], [1, 2, 0, 1], [0, 2, 2, 0], [2, 1, 1, 2]])
def test_other_padding_behind_than_before(tile: Tile, padding: list[int]) -> None:
    above, before, below, behind = padding
    for groups, stride in product((1, 20), ([1, 1], [2, 2], [2, 3])):
        x, weight, bias = torch.randn(2, 20, 9, 8), torch.randn(20, 20 // groups, 3, 3), torch.randn(20)
        around = nn.functional.pad(x.double(), (before, behind, above, below))
        exact = nn.functional.conv2d(around, weight.double(), bias.double(), stride, groups=groups)
        call, taps = convolution_call(PanelConv("none"), tile), PACK_TAPS(weight, groups)
        for given in (x, x.to(memory_format=torch.channels_last)):
            found = call(given, taps, bias, weight.shape, padding, stride, groups)  # type: ignore[arg-type]
            torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("padding", [*product((0, 1), (0, 2), (0, 1), (0, 3))])
def test_copies_of_planes_have_zeros_around(padding: tuple[int, int, int, int], tile: Tile) -> None:
    before, behind, above, below = padding
    function = convolution_function("planes", tile)
    for channels, width in product((1, 2, 3, 4, 5), (4, 16, 37)):
        x = torch.randn(2, channels, 5, width)
        high, wide = 5 + above + below, width + before + behind
        padded = torch.full((2, high, wide, channels), torch.nan)
        more = struct.pack("8q", 2, 5, width, channels, above, before, high, wide)
        pointers = [padded.data_ptr(), x.data_ptr()]
        assert driver()(table_row(function, padded.numel(), pointers, (), more), 1, 1, 0) == 0
        assert torch.equal(padded, nn.functional.pad(x, padding).permute(0, 2, 3, 1))


def test_images_of_planes_with_padding_behind_only() -> None:
    """As TensorFlow pads before strides of 2. What lies around is zeros, whatever was in the memory."""
    model = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 12, 3, 2), nn.Conv2d(12, 12, 3, groups=12)).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(dovetail.freeze(model, (x,), passes="fast")(x), model(x))


def test_addends_that_lie_in_another_way() -> None:
    x, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(8, 4, 3, 3), torch.randn(8)
    call, taps = convolution_call(PanelConv("relu")), PACK_TAPS(weight, 1)
    made = nn.functional.conv2d(x, weight, bias, padding=1)
    for addend in (torch.randn(made.shape), torch.randn(8, 1, 1), torch.randn(2, 8, 9, 8, dtype=torch.complex64).imag):
        found = call(x, taps, bias, weight.shape, [1, 1], [1, 1], 1, addend)  # type: ignore[arg-type]
        torch.testing.assert_close(found, (made + addend).relu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_give_the_same_bits(threads: int) -> None:
    former = torch.get_num_threads()
    for size, groups in (((64, 24, 3, 3), 1), ((64, 32, 3, 3), 1), ((64, 1, 5, 5), 64), ((96, 64, 1, 1), 1)):
        x, weight, bias = torch.randn(1, size[1] * groups, 40, 40), torch.randn(size), torch.randn(size[0])
        call, taps = convolution_call(PanelConv("silu")), PACK_TAPS(weight, groups)
        padding = [size[2] // 2] * 2
        found, addend = [], torch.randn(1, size[0], 40, 40).to(memory_format=torch.channels_last)
        try:
            for count in (1, threads):
                torch.set_num_threads(count)
                found.append(call(x, taps, bias, size, padding, [1, 1], groups, addend))  # type: ignore[arg-type]
        finally:
            torch.set_num_threads(former)
        assert torch.equal(*found)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("image", "outputs", "kernel", "padding", "stride"),
    [
        ((1, 20, 60, 31), 40, (3, 3), [1, 1], [1, 1]),
        ((3, 6, 9, 40), 70, (5, 3), [2, 1], [1, 1]),  # chunks of pixels of several images
        ((2, 5, 40, 30), 33, (5, 5), [2, 2], [2, 3]),
        ((40, 4, 5, 5), 40, (3, 3), [1, 1], [2, 2]),
        ((1, 3, 70, 60), 16, (4, 4), [1, 0, 2, 3], [1, 1]),
    ],
)
def test_images_padded_in_rooms(
    tile: Tile,
    image: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    padding: list[int],
    stride: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight = torch.randn(image).to(memory_format=torch.channels_last), torch.randn(outputs, image[1], *kernel)
    taps, former, found = PACK_TAPS(weight, 1), torch.get_num_threads(), []
    monkeypatch.setattr(convolutions, "THREADED", 1 << 10)  # of which it takes as many rooms as threads may come
    for large, planned_for, threads in ((1 << 62, 1, 1), (1, 1, 1), (1, 3, 3), (1, 1, 5)):  # more threads than rooms
        monkeypatch.setattr(convolutions, "_LARGE", large)
        call = convolution_call(PanelConv("relu"), tile)
        try:
            torch.set_num_threads(planned_for)
            plan = planned(image, weight.shape, padding, stride, 1, taps.shape[0])
            assert plan is not None
            assert bool(plan.filled) == (large > 1) or planned_for > 1
            call(x, taps, None, weight.shape, padding, stride, 1)  # type: ignore[arg-type]
            torch.set_num_threads(threads)
            found.append(call(x, taps, None, weight.shape, padding, stride, 1))  # type: ignore[arg-type]
        finally:
            torch.set_num_threads(former)
    assert all(torch.equal(found[0], each) for each in found)


# --- fewer products ---------------------------------------------------------------------------------------------------

_READS = torch.tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], dtype=torch.float64)
_WEIGHS = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
_MAKES = torch.tensor([[1, 1, 1, 0], [0, 1, -1, -1]], dtype=torch.float64)


def _by_tiles(x: Tensor, weight: Tensor, *, absolute: bool) -> Tensor:
    """The convolution of images with zeros around, by tiles of 2x2, in float64. absolute: of absolute values, all
    added: what each rounding is relative to.
    """
    reads, weighs, makes = (each.abs() if absolute else each for each in (_READS, _WEIGHS, _MAKES))
    x, weight = (each.double().abs() if absolute else each.double() for each in (x, weight))
    rows, columns = x.shape[2] - 2, x.shape[3] - 2
    x = nn.functional.pad(x, (0, columns % 2, 0, rows % 2))
    tiles = reads @ x.unfold(2, 4, 2).unfold(3, 4, 2) @ reads.t()
    products = torch.einsum("nchwij,kcij->nkhwij", tiles, weighs @ weight @ weighs.t())
    made = makes @ products @ makes.t()
    return made.transpose(3, 4).flatten(4, 5).flatten(2, 3)[:, :, :rows, :columns]


def _check_few(
    tile: Tile, activation: str, image: tuple[int, ...], outputs: int, padding: list[int], *, adds: bool = False
) -> None:
    x, weight, bias = torch.randn(image), torch.randn(outputs, image[1], 3, 3), torch.randn(outputs)
    above, before, below, behind = (*padding, *padding)[:4]
    around = nn.functional.pad(x, (before, behind, above, below))
    exact = nn.functional.conv2d(around.double(), weight.double(), bias.double())
    assert torch.allclose(_by_tiles(around, weight, absolute=False) + bias.double()[:, None, None], exact)
    sizes = _by_tiles(around, weight, absolute=True) + bias.abs()[:, None, None]
    addend = torch.randn(exact.shape).to(memory_format=torch.channels_last) if adds else None
    exact, sizes = (exact, sizes) if addend is None else (exact + addend, sizes + addend.abs())
    with mock.patch.object(few_products, "_SMALL", 1 << 40):  # elements that may be taken
        plan = planned(image, weight.shape, padding, [1, 1], 1, -(-outputs // 32))
        assert plan is not None
        assert plan.kind == "winograd"
        call, taps = convolution_call(PanelConv(activation), tile), PACK_TAPS(weight, 1)
        found = call(x, taps, bias, weight.shape, padding, [1, 1], 1, addend)  # type: ignore[arg-type]
    assert found.is_contiguous(memory_format=torch.channels_last)
    roundings = image[1] + 2 * 2 + 2 * 2 + 2 * 2 + 2  # of sums; of transforms on two sides; of the bias and the addend
    bound = _LARGEST_SLOPE * roundings * torch.finfo(torch.float32).eps / 2 * sizes
    bound = bound + (_OWN_ERROR if activation != "none" else 0)
    assert ((found.double() - applied(activation, exact)).abs() <= bound).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("image", "outputs", "padding"),
    rotated(
        [
            *product(
                [
                    (1, 16, 11, 10),
                    (2, 32, 7, 9),
                    (1, 48, 30, 5),
                    (17, 16, 4, 4),
                    (1, 16, 61, 47),
                    (1, 256, 9, 9),
                    (3, 144, 8, 10),
                ],
                [16, 32, 48, 80, 144],
                [[1, 1], [0, 0], [2, 1], [0, 0, 1, 1], [1, 2, 0, 1]],
            )
        ],
        16,
    ),
)
def test_fewer_products(tile: Tile, image: tuple[int, ...], outputs: int, padding: list[int]) -> None:
    _check_few(tile, "none", image, outputs, padding)
    _check_few(tile, "relu", image, outputs, padding, adds=True)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_fewer_products_and_activations(tile: Tile, activation: str) -> None:
    for adds in (False, True):
        _check_few(tile, activation, (2, 16, 9, 7), 48, [1, 1], adds=adds)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("size", [(11, 10), (40, 40)])
@pytest.mark.parametrize("adds", [False, True])
def test_numbers_that_are_not_finite_spread_as_in_any_convolution(
    tile: Tile, size: tuple[int, int], adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums and differences of transforms would make NaN of an infinity, and infinity of a sum of large numbers."""
    x, weight, bias = torch.randn(2, 16, *size), torch.randn(48, 16, 3, 3), torch.randn(48)
    x[0, 3, 2, 5], x[0, 1, 7, 7], x[1, 9, 0, 0] = torch.inf, -torch.inf, torch.nan
    x[1, 2, 8, 4], x[1, 2, 8, 5], x[1, 2, 9, 4], x[1, 2, 9, 5] = 2e38, 2e38, -2e38, 2e38  # differences are infinite
    weight, bias[9] = weight * 0.05, torch.inf
    addend = torch.randn(2, 48, *size).to(memory_format=torch.channels_last) if adds else None
    taps, found = PACK_TAPS(weight, 1), []
    for is_few in (True, False):
        if not is_few:
            monkeypatch.setattr(convolutions, "tiling_of", lambda *_: None)
        call = convolution_call(PanelConv("relu6"), tile), convolution_call(PanelConv("none"), tile)
        found.append([each(x, taps, bias, weight.shape, [1, 1], [1, 1], 1, addend) for each in call])  # type: ignore[arg-type]
    for few, usual in zip(*found, strict=True):
        assert torch.equal(few.isnan(), usual.isnan())
        assert torch.equal(few.isinf(), usual.isinf())
        torch.testing.assert_close(few, usual, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert found[0][1].isinf().any()
    assert found[0][1].isnan().any()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("left", [True, False])
def test_pixels_beside_much_larger_ones_that_they_do_not_read(tile: Tile, left: bool) -> None:
    """Transforms add them, with weights that are zero: rounding would be relative to them."""
    x, weight = torch.randn(1, 32, 12, 14), torch.randn(48, 32, 3, 3)
    if left:
        x[..., -1], weight[..., 1:] = 1e6, 0.0
    else:
        x[:, :, 0], weight[:, :, :2] = 1e6, 0.0
    call = convolution_call(PanelConv("none"), tile)
    found = call(x, PACK_TAPS(weight, 1), None, weight.shape, [1, 1], [1, 1], 1)  # type: ignore[arg-type]
    exact = nn.functional.conv2d(x.double(), weight.double(), padding=1)
    calm = (..., slice(0, -1)) if left else (slice(None), slice(None), slice(1, None))
    assert tiling_of(weight.shape, [1, 1], 1, (12, 14), 1) is not None
    assert (found.double() - exact)[calm].abs().max() <= 1e-5 * exact[calm].abs().max()


@pytest.mark.parametrize("image", [(1, 16, 9, 8), (1, 32, 40, 30), (3, 16, 33, 5)])
def test_fewer_products_with_more_threads_than_rooms(image: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(image).to(memory_format=torch.channels_last), torch.randn(80, image[1], 3, 3)
    taps, former, found = PACK_TAPS(weight, 1), torch.get_num_threads(), []
    monkeypatch.setattr(convolutions, "THREADED", 1 << 10)
    for planned_for, threads in ((1, 1), (3, 3), (1, 5), (64, 2)):
        call = convolution_call(PanelConv("relu"))
        try:
            torch.set_num_threads(planned_for)
            call(x, taps, None, weight.shape, [1, 1], [1, 1], 1)  # type: ignore[arg-type]
            torch.set_num_threads(threads)
            found.append(call(x, taps, None, weight.shape, [1, 1], [1, 1], 1))  # type: ignore[arg-type]
        finally:
            torch.set_num_threads(former)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize(
    ("size", "stride", "result"),
    [
        ((16, 16, 3, 3), [2, 2], (40, 40)),
        ((16, 16, 3, 5), [1, 1], (40, 40)),
        ((16, 16, 5, 5), [1, 1], (40, 40)),
        ((17, 16, 3, 3), [1, 1], (40, 40)),
        ((16, 20, 3, 3), [1, 1], (40, 40)),
        ((16, 512, 3, 3), [1, 1], (40, 40)),
        ((16, 16, 3, 3), [1, 1], (1, 400)),
        ((16, 16, 3, 3), [1, 1], (6, 6)),  # few tiles
    ],
)
def test_convolutions_that_take_all_products(size: list[int], stride: list[int], result: tuple[int, int]) -> None:
    assert tiling_of(size, stride, 1, result, 1) is None
    assert tiling_of([16, 16, 3, 3], [1, 1], 1, (8, 8), 1) is not None


def test_fewer_products_take_no_more_than_images_and_weights_twice() -> None:
    for inputs, outputs, side, threads in product((16, 64, 128, 256), (16, 64, 256), (8, 14, 28, 56), (1, 2, 16, 200)):
        found = tiling_of([outputs, inputs, 3, 3], [1, 1], 1, (side, side), threads)
        if found is None:
            continue
        assert found.elements <= max(1 << 16, 2 * (side * side * (inputs + outputs) + 9 * inputs * outputs))
        assert 1 <= found.rooms <= threads
        tiles = (side // 2) ** 2
        jobs = -(-tiles // found.chunk) * -(-outputs // 32)
        assert found.rooms == min(threads, jobs, 64)
        assert jobs >= min(threads, 8), "threads have something to do"
    assert tiling_of([256, 256, 3, 3], [1, 1], 1, (14, 14), 2) is not None
    assert tiling_of([256, 256, 3, 3], [1, 1], 1, (14, 14), 16) is None  # each would need a room


def test_what_they_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The primitive by itself takes as much, which is what is measured."""
    run, weight, x = PanelConv("none"), torch.randn(64, 64, 3, 3), torch.randn(1, 64, 16, 16)
    tiling, taken = tiling_of(weight.shape, [1, 1], 1, (16, 16), torch.get_num_threads()), []
    assert tiling is not None
    for _ in range(2):
        with torch.profiler.profile(profile_memory=True) as profile:
            run(x, PACK_TAPS(weight, 1), None, weight.shape, [1, 1], [1, 1], 1)  # type: ignore[arg-type]
        taken.append(max(event.self_cpu_memory_usage for event in profile.key_averages()))
        monkeypatch.setattr(panel_convolutions, "tiling_of", lambda *_: None)
    assert taken[0] - taken[1] >= 4 * tiling.elements


def test_sizes_that_change_and_images_that_do_not_fit() -> None:
    weight = torch.randn(8, 3, 3, 3)
    call, taps = convolution_call(PanelConv("none")), PACK_TAPS(weight, 1)
    for shape in ((1, 3, 9, 9), (2, 3, 5, 8), (1, 3, 9, 9), (0, 3, 5, 5)):
        x = torch.randn(shape)
        found = call(x, taps, None, weight.shape, [0, 0], [1, 1], 1)  # type: ignore[arg-type]
        torch.testing.assert_close(found, nn.functional.conv2d(x, weight), rtol=1e-4, atol=1e-4)
    for shape in ((1, 3, 2, 9), (1, 4, 9, 9)):  # torch says so
        with pytest.raises(RuntimeError):
            call(torch.randn(shape), taps, None, weight.shape, [0, 0], [1, 1], 1)  # type: ignore[arg-type]


def test_operands_that_do_not_fit() -> None:
    x, weight = torch.randn(1, 4, 9, 9), torch.randn(8, 4, 3, 3)
    call, taps = convolution_call(PanelConv("none")), PACK_TAPS(weight, 1)
    with pytest.raises(RuntimeError):
        call(x, taps, torch.randn(7), weight.shape, [0, 0], [1, 1], 1)  # type: ignore[arg-type]
    bias = torch.randn(16)[::2]
    found = call(x, taps, bias, weight.shape, [0, 0], [1, 1], 1)  # type: ignore[arg-type]
    torch.testing.assert_close(found, nn.functional.conv2d(x, weight, bias), rtol=1e-4, atol=1e-4)


# --- frozen programs --------------------------------------------------------------------------------------------------


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.SiLU())
        self.mixed, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 5)
        self.spread, self.gathered = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = (x + self.mixed(self.depth(x))).relu()
        x = x + self.spread(x)
        x = nn.functional.silu(self.gathered(x) + x)
        made: Tensor = self.head(x.mean((2, 3)))
        return made


@pytest.mark.parametrize("executors", [("auto", "aten"), ("native", "aten"), ("aten",)])
def test_a_frozen_model(tmp_path: Path, executors: tuple[str, ...]) -> None:
    model = _Blocks().eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 3, 32, 32),), passes="fast", executors=executors)
    for images in (1, 2, 5):
        x = torch.randn(images, 3, 32, 32)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)
    frozen.save(tmp_path / "a.dovetail")
    loaded = dovetail.load(tmp_path / "a.dovetail", executors=executors)
    assert torch.equal(loaded(x), frozen(x))
    other = _Blocks().eval()
    frozen.swap_weights(other.state_dict())
    torch.testing.assert_close(frozen(x), other(x), rtol=1e-4, atol=1e-5)


def test_weights_come_back_when_they_are_saved(tmp_path: Path) -> None:
    model, x = _Blocks().eval(), torch.randn(1, 3, 32, 32)
    expected = model(x)
    frozen = dovetail.freeze(model, (x,), passes="fast", discard_originals=True)
    frozen(x)
    frozen.save(tmp_path / "a.dovetail")
    plain = dovetail.load(tmp_path / "a.dovetail", prepack=False, executors=("aten",))
    torch.testing.assert_close(plain(x), expected, rtol=1e-4, atol=1e-5)
