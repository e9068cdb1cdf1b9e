"""A small GPT: byte tokens in, next-byte loss out. Plain PyTorch, as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class GptConfig:
    """Sizes of a `Gpt`.

    Attributes:
        tie_head: read the output logits with the token embedding's own weight instead of a second matrix.
    """

    vocabulary: int = 256
    context: int = 128
    layers: int = 4
    width: int = 128
    heads: int = 4
    dropout: float = 0.1
    tie_head: bool = True


class Attention(nn.Module):
    """Causal self-attention with one fused projection for queries, keys and values."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_dropout = config.dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with the ones before it: f32[batch, time, width] to the same shape."""
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project_in(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.attention_dropout if self.training else 0.0
        )
        output: Tensor = self.dropout(self.project_out(mixed.transpose(1, 2).reshape(batch, time, width)))
        return output


class Block(nn.Module):
    """One pre-norm transformer block: attention, then a GELU network four times as wide."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and the network see: f32[batch, time, width] to the same shape."""
        x = x + self.attention(self.norm_attention(x))
        output: Tensor = x + self.mlp(self.norm_mlp(x))
        return output


class Gpt(nn.Module):
    """A decoder-only transformer over byte tokens."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(_initialize)
        if config.tie_head:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets` (both i64[batch, time]) as a scalar."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
