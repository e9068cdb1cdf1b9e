"""Autocast around a call, with the backward inside or outside of it: bits, dtypes and gradients as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail


class Attention(nn.Module):
    """Attention that drops, as `nn.MultiheadAttention` computes it without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).split(16, 2)
        q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in parts)
        made = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + F.dropout(self.out(made.transpose(1, 2).flatten(2)), 0.1)
        result: Tensor = x + self.mlp(self.second(x))
        return result


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attention, (2, 5, 16)),
    "block": (Block, (2, 5, 16)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU()), (2, 2, 6, 6)),
}
DOORS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "compile": dovetail.compile,
    "backend": lambda model: torch.compile(model, backend="dovetail"),
    "aot": lambda model: dovetail.aot_function(model, fw_compiler=lambda gm, inputs: gm),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MODELS)
def test_as_eager(name: str, door: str, backward_inside: bool) -> None:
    make, shape = MODELS[name]
    outcomes = []
    for wrap in (lambda model: model, DOORS[door]):
        torch.manual_seed(0)
        model = make()
        called = wrap(model)
        for _ in range(2):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                made = called(x)
                if backward_inside:
                    made.float().square().sum().backward()
            if not backward_inside:
                made.float().square().sum().backward()
        outcomes.append([made.detach(), x.grad, *(p.grad for p in model.parameters())])
    for actual, expected in zip(outcomes[1], outcomes[0], strict=True):
        assert actual is not None
        assert actual.dtype is expected.dtype
        assert torch.equal(actual, expected)


def test_one_call_with_backward_inside_then_outside() -> None:
    model = Block().eval()
    compiled = dovetail.compile(model)
    for inside in (False, True, False):
        gradients = []
        for called in (model, compiled):
            model.zero_grad()
            x = torch.linspace(-1, 1, 160).view(2, 5, 16).requires_grad_()
            torch.manual_seed(3)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                made = called(x)
            with torch.autocast("cpu", dtype=torch.bfloat16) if inside else contextlib.nullcontext():
                made.float().square().sum().backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)
