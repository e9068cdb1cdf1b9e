"""The models that are measured: each one a module, its inputs, and a loss to differentiate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.nets import ImageTransformer, RecurrentModel, SwigluTransformer, UNet
from examples.demo.model import Gpt, GptConfig


@dataclass(frozen=True, slots=True)
class Workload:
    """A model in training mode and the keyword arguments of one call; the call gives a loss."""

    model: nn.Module
    inputs: dict[str, Tensor]


def build_workload(name: str, device: str = "cpu", seed: int = 0) -> Workload:
    """Build the model called `name` on `device`; equal seeds give equal weights and inputs.

    Raises:
        KeyError: there is no model of that name; see `MODELS`.
        ImportError: the model needs the package transformers, and it is not installed.
    """
    torch.manual_seed(seed)
    workload = MODELS[name]()
    return Workload(
        workload.model.to(device).train(), {key: value.to(device) for key, value in workload.inputs.items()}
    )


def loss_of(output: Any) -> Tensor:
    """Return the loss of a model's output: the output itself, or its `loss` field."""
    loss: Tensor = output if isinstance(output, Tensor) else output.loss
    return loss


def _gpt2(
    layers: int, *, width: int = 256, heads: int = 4, vocabulary: int = 8192, batch: int = 4, time: int = 128
) -> Workload:
    transformers = _transformers()
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=time,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, time))
    return Workload(transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens})


def _bert() -> Workload:
    transformers = _transformers()
    config = transformers.BertConfig(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        vocab_size=8192,
        max_position_embeddings=128,
    )
    tokens = torch.randint(8192, (4, 128))
    labels = torch.where(torch.rand(4, 128) < 0.15, tokens, -100)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    return Workload(transformers.BertForMaskedLM(config), inputs)


def _llama() -> Workload:
    transformers = _transformers()
    config = transformers.LlamaConfig(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=688,
        vocab_size=8192,
        max_position_embeddings=128,
        use_cache=False,
    )
    tokens = torch.randint(8192, (4, 128))
    return Workload(transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens})


def _mlp(*, blocks: int = 6, width: int = 256, inner: int = 512, batch: int = 64) -> Workload:
    inputs = {"x": torch.randn(batch, width), "target": torch.randn(batch, width)}
    return Workload(Regressor(blocks, width, inner), inputs)


def _small_gpt() -> Workload:
    tokens = torch.randint(256, (8, 129))
    return Workload(Gpt(GptConfig()), {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()})


def _resnet18() -> Workload:
    return Workload(ResNet18(), {"images": torch.randn(8, 3, 64, 64), "labels": torch.randint(100, (8,))})


def _swiglu(layers: int, *, width: int, inner: int, vocabulary: int, batch: int, time: int) -> Workload:
    tokens = torch.randint(vocabulary, (batch, time + 1))
    net = SwigluTransformer(layers, width=width, heads=4, inner=inner, vocabulary=vocabulary)
    return Workload(net, {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()})


def _vit() -> Workload:
    net = ImageTransformer(4, width=256, heads=4, patch=8, side=64, classes=100)
    return Workload(net, {"images": torch.randn(16, 3, 64, 64), "labels": torch.randint(100, (16,))})


def _lstm() -> Workload:
    tokens = torch.randint(4096, (16, 65))
    net = RecurrentModel(2, width=256, vocabulary=4096)
    return Workload(net, {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()})


def _unet() -> Workload:
    images, labels = torch.randn(4, 3, 64, 64), torch.randint(10, (4, 64, 64))
    return Workload(UNet(4, channels=32, classes=10), {"images": images, "labels": labels})


def _transformers() -> Any:
    # Loaded on demand: the models of plain torch can be measured without it.
    import transformers  # noqa: PLC0415

    return transformers


class Regressor(nn.Module):
    """Blocks of two linear layers around a GELU, that return the mean squared error of what comes out."""

    def __init__(self, blocks: int, width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for _ in range(blocks):
            self.layers.extend([nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)])

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of f32[batch, width] against a target like it."""
        return F.mse_loss(self.layers(x), target)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[batch, channels_in, h, w] to f32[batch, channels, h / stride, w / stride]."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """A residual network of 18 layers that returns its cross-entropy loss."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels_in = 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [ResidualBlock(channels_in, channels, stride), ResidualBlock(channels, channels, 1)]
            channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of f32[batch, 3, h, w] images against i64[batch] labels."""
        features = self.blocks(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


MODELS: dict[str, Callable[[], Workload]] = {
    "gpt2-4": lambda: _gpt2(4),
    "gpt2-12": lambda: _gpt2(12),
    "gpt2-4-short": lambda: _gpt2(4, batch=1, time=32),
    "resnet18": _resnet18,
    "bert": _bert,
    "llama": _llama,
    "small-gpt": _small_gpt,
    "swiglu-8": lambda: _swiglu(8, width=128, inner=512, vocabulary=512, batch=4, time=256),
    "swiglu-16": lambda: _swiglu(16, width=64, inner=172, vocabulary=256, batch=4, time=64),
    "vit": _vit,
    "lstm": _lstm,
    "unet": _unet,
    "mlp": _mlp,
    "mlp-small": lambda: _mlp(blocks=2, width=32, inner=64, batch=16),
    "gpt2-base": lambda: _gpt2(12, width=768, heads=12, vocabulary=50257, batch=8, time=512),
}
