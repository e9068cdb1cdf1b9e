"""Random nets over images, as people deploy them: convolutions of all kinds, norms, pools, residuals, parts."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.ELU,
    nn.Identity,
)


class Scaled(nn.Module):
    """Channels are weighed by what all of the image holds."""

    def __init__(self, channels: int, draw: random.Random) -> None:
        super().__init__()
        few = max(1, channels // draw.choice((2, 4)))
        self.few, self.many, self.gate = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1), _activation(draw)

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[n, c, h, w] to the same."""
        mean: Tensor = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.many(self.gate(self.few(mean))))


class Residual(nn.Module):
    """Layers, and what they are given, one added to the other or side by side."""

    def __init__(self, layers: nn.Module, *, beside: bool) -> None:
        super().__init__()
        self.layers, self.beside = layers, beside

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[n, c, h, w] to the same, or to as many channels more as the layers give."""
        made: Tensor = self.layers(x)
        return torch.cat((x, made), 1) if self.beside else made + x


class Drawn(nn.Module):
    """A net. shown: the shape of one image."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(f"images {seed}")
        torch.manual_seed(seed)
        channels, size = draw.choice((1, 2, 3, 3, 4, 8, 17)), draw.choice((7, 8, 12, 16, 21, 32, 40))
        self.shown = (channels, size, draw.choice((size, size, size + 3)))
        layers, shape = list[nn.Module](), (1, *self.shown)
        for _ in range(draw.randint(1, 6)):
            layer = _layer(draw, shape)
            with torch.no_grad():
                try:
                    after = layer.eval()(torch.zeros(shape)).shape
                except RuntimeError:  # no image is left
                    continue
            if after[1] <= 96 and after.numel() and max(after[2:]) <= 80:
                layers.append(layer)
                shape = tuple(after)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(shape[1], 5) if draw.random() < 0.3 else None
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                nn.init.uniform_(module.running_mean, -0.2, 0.2)
                nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[n, channels, h, w] to an image, or to f32[n, 5]."""
        made: Tensor = self.layers(x)
        return made if self.head is None else self.head(made.mean((2, 3)))


def images(net: Drawn, count: int, seed: int, *, channels_last: bool) -> Tensor:
    """Images for a net."""
    x = torch.randn(count, *net.shown, generator=torch.Generator().manual_seed(seed))
    return x.to(memory_format=torch.channels_last) if channels_last else x


def _activation(draw: random.Random) -> nn.Module:
    return draw.choice(_ACTIVATIONS)()


def _layer(draw: random.Random, shape: tuple[int, ...]) -> nn.Module:
    channels = shape[1]
    kind = draw.choice(
        ("convolution",) * 6 + ("depthwise",) * 3 + ("transposed", "pool", "scaled", "residual", "residual", "other")
    )
    if kind == "residual":
        kernel = draw.choice((1, 3, 5))
        same = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=draw.choice((1, channels)))
        inner = nn.Sequential(same, nn.BatchNorm2d(channels), _activation(draw))
        return Residual(inner, beside=draw.random() < 0.4)
    if kind == "scaled":
        return Scaled(channels, draw)
    if kind == "pool":
        size, stride = draw.choice((2, 3)), draw.choice((1, 2))
        pools: tuple[Any, ...] = (nn.MaxPool2d, nn.AvgPool2d)
        return draw.choice(pools)(size, stride, padding=draw.choice((0, size // 2)), ceil_mode=draw.random() < 0.3)
    if kind == "other":
        norms = (
            nn.GroupNorm(1, channels),
            nn.InstanceNorm2d(channels),
            nn.Upsample(scale_factor=2),
            nn.PixelUnshuffle(2),
        )
        return draw.choice((*norms, nn.Dropout(0.5), nn.AdaptiveAvgPool2d(draw.choice((1, 3))), nn.ReflectionPad2d(1)))
    if kind == "transposed":
        made: nn.Module = nn.ConvTranspose2d(
            channels, draw.choice((4, 8, 16)), draw.choice((2, 3)), draw.choice((1, 2))
        )
    else:
        made = _convolution(draw, channels, is_depthwise=kind == "depthwise")
    outputs = int(made.out_channels)  # type: ignore[arg-type]
    padding = [nn.ZeroPad2d([draw.choice((0, 0, 1, 2)) for _ in range(4)])] if draw.random() < 0.4 else []
    norm = [nn.BatchNorm2d(outputs)] if draw.random() < 0.5 else []
    return nn.Sequential(*padding, made, *norm, *([_activation(draw)] if draw.random() < 0.8 else []))


def _convolution(draw: random.Random, channels: int, *, is_depthwise: bool) -> nn.Conv2d:
    kernel = draw.choice((1, 1, 2, 3, 3, 3, 5, 7)), draw.choice((1, 3, 3, 5))
    kernel = kernel if draw.random() < 0.3 else (kernel[0], kernel[0])
    outputs = channels * draw.choice((1, 1, 2)) if is_depthwise else draw.choice((1, 3, 5, 8, 16, 24, 32, 48, 64))
    groups = (
        channels if is_depthwise else draw.choice([g for g in (1, 1, 1, 2, 4) if not channels % g and not outputs % g])
    )
    return nn.Conv2d(
        channels,
        outputs,
        kernel,
        stride=draw.choice((1, 1, 2, (1, 2), 3)),
        padding=draw.choice((0, (kernel[0] // 2, kernel[1] // 2), 1, (0, kernel[1] // 2))),
        dilation=draw.choice((1, 1, 1, 2)),
        groups=groups,
        bias=draw.random() < 0.5,
        padding_mode=draw.choice(("zeros", "zeros", "zeros", "reflect", "circular")),
    )
