"""Batches stay free: what C++ fixes, or asks of sizes, is neither in the program nor in its guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadDynamicShapes
from dovetail.inspect.memory import measure_peak


class _Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _PoolFormer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.norm = nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.GroupNorm(1, 4)
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.mix = nn.Sequential(nn.Conv2d(4, 8, 1), nn.GELU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.scale[:, None, None] * (self.pool(y) - y)
        return x + self.mix(self.norm(x))


def _windows(x: Tensor) -> Tensor:
    """Attention within windows, moved by one."""
    batch, channels, height, width = x.shape
    rows = x.view(batch, channels, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, channels)
    rows = (rows @ rows.mT).softmax(-1) @ rows
    rows = rows.view(batch, height // 4, width // 4, 4, 4, channels).permute(0, 5, 1, 3, 2, 4)
    return rows.reshape(batch, channels, height, width).roll((1, 1), (2, 3))


_IMAGE, _ROW, _SIGNAL = (4, 8, 8), (8,), (33,)
_CASES: dict[str, tuple[nn.Module | Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "conv2d": (nn.Conv2d(4, 4, 3, padding=1), _IMAGE),
    "conv2d of points": (nn.Conv2d(4, 4, 1), _IMAGE),
    "conv1d": (nn.Conv1d(4, 4, 3), (4, 9)),
    "conv3d": (nn.Conv3d(2, 4, 1), (2, 4, 4, 4)),
    "transposed": (nn.ConvTranspose2d(4, 4, 3), _IMAGE),
    "poolformer": (_PoolFormer(), _IMAGE),
    "adaptive": (nn.Sequential(nn.AdaptiveAvgPool2d((3, None)), nn.AdaptiveMaxPool2d((2, 5))), _IMAGE),
    "windows": (_windows, _IMAGE),
    "every second point": (lambda x: x[:, :, ::4, ::4][:, :, ::2, ::2].reshape(x.shape[0], -1, 4) * 2, _IMAGE),
    "one channel": (nn.Sequential(nn.Conv2d(4, 1, 1), nn.ReLU(), nn.Conv2d(1, 2, 3)), _IMAGE),
    "one head": (
        lambda x: (
            F.scaled_dot_product_attention(*[x[:, :1, None].squeeze(1)] * 3).transpose(1, 2).reshape(len(x), 8, 8)
        ),
        _IMAGE,
    ),
    "affine_grid": (lambda x: F.affine_grid(x[:, 0, :2, :3], [x.shape[0], 3, 4, 5], align_corners=False), _IMAGE),
    "kron": (lambda x: torch.kron(x, torch.ones(2, 3)) + torch.kron(torch.eye(2), x).sum(), _ROW),
    "quantile": (lambda x: x.quantile(0.3, dim=-1), _ROW),
    "nanquantile": (lambda x: x.nanquantile(torch.tensor([0.2, 0.7]), dim=1, keepdim=True), _ROW),
    "expand": (lambda x: x.mean().expand(x.shape[0], 1) * x, _ROW),
    "stft": (lambda x: torch.stft(x, 8, 2, window=torch.hann_window(8), return_complex=True).abs(), _SIGNAL),
    "stft, short window": (lambda x: x.stft(8, 3, 6, torch.ones(6), normalized=True, return_complex=True), _SIGNAL),
    "stft, two sides": (
        lambda x: torch.view_as_real(torch.stft(torch.complex(x, x), 8, 2, 7, torch.ones(7), return_complex=True)),
        _SIGNAL,
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_batches_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    function, shape = _CASES[name]
    model = (function if isinstance(function, nn.Module) else _Calls(function)).eval()
    frozen = dovetail.freeze(model, (torch.rand(3, *shape),))
    assert frozen.specialized == ()
    with torch.no_grad():
        for batch in (1, 2, 15, 16, 33):
            x = torch.rand(batch, *shape)
            found, wanted = frozen(x), model(x)
            assert torch.equal(found, wanted), batch
            assert found.stride() == wanted.stride() or batch == 1


def test_images_with_channels_last_and_of_any_height() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    example = torch.rand(20, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    frozen = dovetail.freeze(model, (example,), dynamic_shapes={"input": {0: "batch", 2: "height"}})
    with torch.no_grad():
        for batch, height in ((2, 8), (15, 5), (16, 12)):
            x = torch.rand(batch, 3, height, 8).contiguous(memory_format=torch.channels_last)
            assert torch.equal(frozen(x), model(x))
            assert frozen(x).stride() == model(x).stride()


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # said once in a process, by whatever test comes first
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_of_any_batch_and_length(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    more = {"proj_size": 3} if kind is nn.LSTM else {}
    layers = kind(4, 5, num_layers=2, bidirectional=True, batch_first=batch_first, **more).eval()
    shapes = {"input": {0: "batch", 1: "length"}, "hx": None}
    frozen = dovetail.freeze(layers, (torch.rand(3, 6, 4),), dynamic_shapes=shapes)
    with torch.no_grad():
        for rows, columns in ((2, 9), (7, 2), (1, 4), (4, 1)):
            x = torch.rand(rows, columns, 4)
            assert torch.equal(frozen(x)[0], layers(x)[0])


def test_a_compiled_convolution_is_one_program_for_few_and_many_images() -> None:
    model = nn.Conv2d(3, 4, 3, padding=1)
    compiled = dovetail.compile(lambda x: model(x).relu(), dynamic=True)
    with torch.no_grad():
        for batch in (5, 15, 16, 40):
            x = torch.rand(batch, 3, 6, 6)
            assert torch.equal(compiled(x), model(x).relu())
    assert compiled.stats.captures == 1


_SIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of all": lambda x: F.avg_pool2d(x, x.shape[2:]).flatten(1),
    "largest of all": lambda x: x * F.max_pool2d(x, x.size()[2:]).sigmoid(),
    "halves": lambda x: F.max_pool2d(x, (x.size(2) // 2, x.size(3) // 2)) + F.avg_pool2d(x, [x.size(2) // 2, 2]).sum(),
    "norms": lambda x: F.lp_pool2d(x, 2, (x.shape[2], 2)),
    "rows": lambda x: F.max_pool1d(x.flatten(2), 2) - F.avg_pool1d(x.flatten(2), x.shape[2] * x.shape[3]),
    "places of largest": lambda x: F.max_pool1d(x.flatten(2), 3, return_indices=True)[1],
    "largest, and places": lambda x: torch.cat(F.max_pool2d(x, (x.shape[2], 1), return_indices=True)),
    "volume": lambda x: F.avg_pool3d(x[:, None], (2, x.shape[2], x.shape[3])) * F.max_pool3d(x, (2, 2, x.shape[3])),
    "linspace": lambda x: x * torch.linspace(-1, 1, x.shape[3]) + torch.linspace(0, 1, steps=x.shape[2])[:, None],
    "logspace": lambda x: x * torch.logspace(0, 1, x.shape[3], base=2.0),
    "windows": lambda x: x * torch.hann_window(x.shape[3]) + torch.hamming_window(x.shape[2], False)[:, None],
    "tensor of a size": lambda x: x / torch.tensor(float(x.shape[2])).sqrt() + torch.tensor([x.shape[3], 2]).prod(),
    "resampled to any": lambda x: F.interpolate(F.adaptive_avg_pool2d(x, 3), size=x.shape[2:], mode="bilinear"),
    "range of a product": lambda x: x.flatten() * torch.arange(x.numel()),
    "convolved": nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 3)),
}


@pytest.mark.parametrize("name", _SIZED)
def test_images_of_any_height_and_width(name: str, tmp_path: Path) -> None:
    """Numbers that C++ takes as they are, for one image as for several; of as many numbers as it may be; in files."""
    torch.manual_seed(0)
    model = _Calls(_SIZED[name]).eval()
    for example in (1, 3):
        frozen = dovetail.freeze(model, (torch.randn(example, 4, 8, 8),), dynamic_shapes=({0: "b", 2: "h", 3: "w"},))
        if example > 1:
            frozen.save(tmp_path / "model.dovetail")
            frozen = dovetail.load(tmp_path / "model.dovetail")
        for shape in ((3, 4, 8, 8), (2, 4, 6, 12), (1, 4, 8, 20), (1, 4, 40, 24)):
            x = torch.randn(shape)
            with torch.no_grad():
                expected, found = model(x), frozen(x)
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_a_size_that_hardly_varies_is_fixed() -> None:
    """Half of the width, rounded, is 8 for widths of 15 and 16 alone."""
    halved = nn.Conv2d(3, 8, 3, 2, 1)
    model = _Calls(lambda x: F.rms_norm(y := halved(x), (y.shape[-1],)))
    with pytest.raises(BadDynamicShapes, match=r"'w' .* is 16 or near to it: the model relies on"):
        dovetail.freeze(model, (torch.randn(2, 3, 8, 16),), dynamic_shapes=({0: "b", 3: "w"},))


@pytest.mark.parametrize("shape", ["rows", "volume"])
@pytest.mark.parametrize("dynamic", [None, "static"])
def test_group_norms_of_images_in_another_shape(shape: str, dynamic: str | None) -> None:
    """Kernels take contiguous tensors, and images with the channels last, but no view of these in another shape."""
    torch.manual_seed(0)
    convolution, norm = nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32)
    sizes = (-1,) if shape == "rows" else (2, -1, 8)
    model = _Calls(lambda x: norm(convolution(x).reshape(x.shape[0], 32, *sizes)).sigmoid()).eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 3, 8, 8),), passes="fast", dynamic_shapes=dynamic)
    for count in (2, 3) if dynamic is None else (2,):
        x = torch.randn(count, 3, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(frozen(x), model(x), rtol=0, atol=1e-5)


def test_parts_written_one_by_one_are_written_in_place() -> None:
    """Slices of a result whose batch is a symbol: no part is a copy of the whole."""

    def pasted(x: Tensor) -> Tensor:
        made = torch.zeros(x.shape[0], 16, 8)
        for place in range(4):
            made[:, place * 4 : (place + 1) * 4] = x[:, place : place + 1]
        made[:, -3:, :2] = x[:, :3, :2] * 2
        return made

    x = torch.randn(5, 4, 8)
    frozen = dovetail.freeze(_Calls(pasted), (x[:3],))
    assert torch.equal(frozen(x), pasted(x))
    eager, ours = (measure_peak(lambda _, run=run: run(x), []).peak_bytes for run in (pasted, frozen))
    assert ours <= eager


@pytest.mark.parametrize("kind", ["chunks", "halves", "frames"])
def test_sizes_that_others_make_1(kind: str) -> None:
    """A size that is computed from a free one may be 1, though programs are for those above."""
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "chunks": lambda x: F.pad(x, (0, -x.shape[-1] % 8)).view(x.shape[0], -1, 8).mean(-1),
        "halves": lambda x: torch.relu(F.avg_pool1d(x[:, None], 2)).softmax(-1),
        "frames": lambda x: x.unfold(1, 4, 3).mean(-1, keepdim=True) * 2,
    }
    model = _Calls(calls[kind])
    frozen = dovetail.freeze(model, (torch.randn(2, 20),), dynamic_shapes=({0: "b", 1: "t"},))
    for batch in (1, 3):
        for length in (30, 16, 9, 8, 6, 5, 4):
            x = torch.randn(batch, length)
            assert torch.equal(frozen(x), model(x)), (batch, length)
