"""Language models: counting pairs, recurrent ones, decoders of several kinds, and how they are read from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

VOCABULARY, LENGTH, WIDTH = 23, 8, 16
EVERY = ("step", "backend", "compile", "freeze")


def _tokens() -> tuple[Tensor, Tensor]:
    text = torch.randint(0, VOCABULARY, (3, LENGTH + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _predict(model: nn.Module, wrap: Wrap, optimizer: torch.optim.Optimizer | None = None) -> Made:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95))
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    batches = some(_tokens)
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))


@program(*EVERY)
def bigrams(wrap: Wrap) -> Made:
    return _predict(nn.Embedding(VOCABULARY, VOCABULARY), wrap)


class Window(nn.Module):
    """A perceptron over the last few tokens, with a token for what is before the text."""

    def __init__(self, block: int = 3) -> None:
        super().__init__()
        self.block = block
        self.embed = nn.Embedding(VOCABULARY + 1, 6)
        self.mlp = nn.Sequential(nn.Linear(6 * block, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for _ in range(self.block):
            parts.append(self.embed(x))
            x = torch.roll(x, 1, 1)
            x[:, 0] = VOCABULARY
        return self.mlp(torch.cat(parts, -1))


@program(*EVERY)
def window_of_tokens(wrap: Wrap) -> Made:
    return _predict(Window(), wrap)


class Attend(nn.Module):
    """Causal self-attention written out, with a mask in a buffer."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(x).split(WIDTH, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.attend = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attend()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.GELU(approximate="tanh"), nn.Linear(32, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.n1(x))
        return x + self.mlp(self.n2(x))


class Small(nn.Module):
    """Tokens and positions, layers, and a head that shares the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._start)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places(torch.arange(x.size(1), device=x.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@program(*EVERY)
def small_decoder(wrap: Wrap) -> Made:
    model = Small()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return _predict(model, wrap, torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.95)))


@program("step", "backend", "compile")
def accumulate_warm_up_and_decay(wrap: Wrap) -> Made:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=False, foreach=True)
    net = wrap(model)
    progress = {"number": 0}

    def rate(number: int) -> float:
        if number < 2:
            return 1e-3 * (number + 1) / 3
        return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * (number - 2) / 8)) * 9e-4

    def step(x: Tensor, y: Tensor) -> float:
        for group in optimizer.param_groups:
            group["lr"] = rate(progress["number"])
        total = 0.0
        for part, wanted in zip(x.split(1), y.split(1), strict=True):
            loss = F.cross_entropy(net(part).flatten(0, 1), wanted.flatten()) / 3
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress["number"] += 1
        return total

    return Made(step, some(_tokens), {"model": model, "optimizer": optimizer, "progress": progress})


@program("compile", "backend", captures=8)
def generate_token_by_token(wrap: Wrap) -> Made:
    model = Small().eval()
    net = wrap(model)

    @torch.no_grad()
    def step(start: Tensor) -> Tensor:
        text = start
        for _ in range(4):
            logits = net(text)[:, -1, :] / 0.8
            best, _ = torch.topk(logits, 5)
            logits[logits < best[:, [-1]]] = -float("inf")
            text = torch.cat((text, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return text

    return Made(step, some(lambda: torch.randint(0, VOCABULARY, (2, 3))), {"model": model})


@program("step", "compile")
def generate_in_one_program(wrap: Wrap) -> Made:
    model = Small().eval()

    def sample(text: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(3):
                chances = F.softmax(model(text)[:, -1, :], dim=-1)
                ordered, order = torch.sort(chances, descending=True)
                ordered[ordered.cumsum(-1) - ordered > 0.9] = 0.0  # the nucleus
                chosen = torch.multinomial(ordered, 1)
                text = torch.cat((text, order.gather(-1, chosen)), dim=1)
        return text

    return Made(wrap(sample), some(lambda: torch.randint(0, VOCABULARY, (2, 3))), {"model": model})


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RootMean(nn.Module):
    """A norm by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Grouped(nn.Module):
    """Attention in which several queries share a key, with rotated positions and, on demand, a cache."""

    def __init__(self, heads: int = 4, keys: int = 2, cache: bool = False) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, WIDTH // heads
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, keys * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** -(torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        if cache:
            self.register_buffer("kept_k", torch.zeros(2, keys, LENGTH, self.size))
            self.register_buffer("kept_v", torch.zeros(2, keys, LENGTH, self.size))

    def forward(self, x: Tensor, place: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        cos, sin = (self.cos[:t], self.sin[:t]) if place is None else (self.cos[place], self.sin[place])
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mask = None
        if place is not None:
            self.kept_k[:, :, place] = k
            self.kept_v[:, :, place] = v
            k, v = self.kept_k, self.kept_v
            mask = torch.arange(LENGTH)[None, :] <= place[:, None]
        k, v = (it.repeat_interleave(self.heads // self.keys, dim=1) for it in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=place is None)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Gated(nn.Module):
    """A perceptron whose inner values are gated by SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.w2 = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Rotary(nn.Module):
    """A decoder with rotated positions, grouped keys, and perceptrons of some kind."""

    def __init__(self, inner: type[nn.Module] = Gated, cache: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.attends = nn.ModuleList(Grouped(cache=cache) for _ in range(2))
        self.inner = nn.ModuleList(inner() for _ in range(2))
        self.norms = nn.ModuleList(RootMean(WIDTH) for _ in range(5))

    def forward(self, x: Tensor, place: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        for number, (attend, inner) in enumerate(zip(self.attends, self.inner, strict=True)):
            x = x + attend(self.norms[2 * number](x), place)
            x = x + inner(self.norms[2 * number + 1](x))
        return self.head(self.norms[4](x))


@program(*EVERY)
def rotary_decoder(wrap: Wrap) -> Made:
    return _predict(Rotary(), wrap)


@program("step", "backend", "compile", "freeze")
def cached_keys(wrap: Wrap) -> Made:
    model = Rotary(cache=True).eval()
    net = wrap(model)

    @torch.no_grad()
    def step(token: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        logits = net(token, place)
        return logits[:, -1].argmax(-1, keepdim=True), logits

    batches = [(torch.randint(0, VOCABULARY, (2, 1)), torch.tensor([number])) for number in range(5)]
    return Made(step, batches, {"model": model}, (model, batches))


class Experts(nn.Module):
    """Each token goes to its two best experts, which are asked one after the other."""

    def __init__(self, count: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(Gated() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, which = torch.topk(self.router(flat).softmax(-1), self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, rank = torch.where(which == number)
            out.index_add_(0, row, expert(flat[row]) * weights[row, rank, None])
        return out.view_as(x)


@program("step", "backend", "compile", "freeze", captures=5, whole=True)
def routed_experts(wrap: Wrap) -> Made:
    return _predict(Rotary(Experts), wrap)


@program("backend", captures=20)
def routed_experts_in_pieces(wrap: Wrap) -> Made:
    return _predict(Rotary(Experts), wrap)


class DenseExperts(nn.Module):
    """Every expert sees every token, as one batched product; the router weights the answers."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.up = nn.Parameter(torch.randn(count, WIDTH, 12) / 4)
        self.down = nn.Parameter(torch.randn(count, 12, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(torch.einsum("btd,edh->bteh", x, self.up)).square()
        return torch.einsum("bteh,ehd,bte->btd", inner, self.down, self.router(x).softmax(-1))


@program(*EVERY)
def dense_experts(wrap: Wrap) -> Made:
    return _predict(Rotary(DenseExperts), wrap)
