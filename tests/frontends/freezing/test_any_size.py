"""Batches stay free: what C++ fixes, or asks of sizes, is neither in the program nor in its guard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail


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
