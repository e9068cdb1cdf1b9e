"""Changed layers: adapters, low precision, quantised and pruned weights, checkpoints, parametrisations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from tests.programs.harness import Made, Wrap, program, some

DOORS, EVERY = ("step", "backend", "compile"), ("step", "backend", "compile", "freeze")


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 6), torch.randint(0, 4, (5,))


def _train(model: nn.Module, wrap: Wrap, lr: float = 1e-2) -> Made:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(_batch)
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))


class LowRank(nn.Module):
    """A frozen linear layer, and a product of two thin matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale, self.drop = base.requires_grad_(False), scale, nn.Dropout(0.1)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (self.drop(x) @ self.down.T @ self.up.T) * self.scale


@program(*EVERY)
def low_rank_adapters(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4))
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, LowRank(child))
    return _train(model, wrap)


class Directions(LowRank):
    """The same, with the size of each row learned apart from its direction."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.size = nn.Parameter(base.weight.norm(dim=1, keepdim=True).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.base.weight + self.scale * self.up @ self.down
        return F.linear(x, self.size * weight / weight.norm(dim=1, keepdim=True).detach(), self.base.bias)


@program(*EVERY)
def sizes_and_directions(wrap: Wrap) -> Made:
    return _train(nn.Sequential(Directions(nn.Linear(6, 12)), nn.ReLU(), Directions(nn.Linear(12, 4))), wrap)


class Prompted(nn.Module):
    """Learned vectors before the tokens of a frozen encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(2, 6) * 0.1)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True).requires_grad_(False)
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.prompt.unsqueeze(0).repeat(x.shape[0], 1, 1), x[:, None]], 1)
        return self.head(self.scale * self.layer(x)[:, -1])


@program(*EVERY)
def learned_prompts(wrap: Wrap) -> Made:
    return _train(Prompted(), wrap)


@program(*DOORS)
def merged_after_each_step(wrap: Wrap) -> Made:
    model = nn.Sequential(LowRank(nn.Linear(6, 4)))
    made = _train(model, wrap)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = made.step(x, y)
        layer = model[0]
        with torch.no_grad():
            layer.base.weight += layer.scale * layer.up @ layer.down
            out = F.linear(x, layer.base.weight, layer.base.bias)
            layer.base.weight -= layer.scale * layer.up @ layer.down
        return loss, out

    return Made(step, made.batches, made.state)


class Rounded(torch.autograd.Function):
    """Rounds forward; passes gradients of what is in range backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, bits: int) -> Tensor:
        top = 2 ** (bits - 1) - 1
        ctx.save_for_backward((x / scale).abs() <= top)
        return torch.clamp((x / scale).round(), -top - 1, top) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None


class Quantized(nn.Linear):
    """A linear layer that sees its weight and its input through few bits; it watches the range of the input."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__(enters, leaves)
        self.register_buffer("range", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.range.mul_(0.9).add_(x.abs().max(), alpha=0.1)
        scale = self.weight.detach().abs().amax(1, keepdim=True) / 7
        return F.linear(Rounded.apply(x, self.range / 127, 8), Rounded.apply(self.weight, scale, 4), self.bias)


@program(*EVERY)
def few_bits(wrap: Wrap) -> Made:
    return _train(nn.Sequential(Quantized(6, 12), nn.ReLU(), Quantized(12, 4)), wrap)


class Fake(nn.Module):
    """torch's own fake quantization, with a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.scale, self.zero = nn.Parameter(torch.tensor([0.05])), nn.Parameter(torch.tensor([0.0]))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.fake_quantize_per_tensor_affine(self.linear.weight, 0.02, 0, -128, 127)
        h = torch._fake_quantize_learnable_per_tensor_affine(
            F.relu(F.linear(x, weight)), self.scale, self.zero, 0, 255, 1.0
        )
        return self.out(h)


@program(*DOORS)
def fake_quantized(wrap: Wrap) -> Made:
    return _train(Fake(), wrap)


@program(*DOORS)
def signs_for_weights(wrap: Wrap) -> Made:
    class Binary(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            size = self.weight.abs().mean(1, keepdim=True).detach()
            hard = torch.where(self.weight >= 0, 1.0, -1.0) * size
            soft = self.weight.clamp(-1, 1)
            return F.linear(x, hard.detach() - soft.detach() + soft, self.bias)

    return _train(nn.Sequential(Binary(6, 12), nn.Hardtanh(), Binary(12, 4)), wrap)


@program(*DOORS)
def pruned_by_a_mask(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    masks = {name: (p.abs() > p.abs().median()).float() for name, p in model.named_parameters() if p.dim() > 1}
    made = _train(model, wrap)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = made.step(x, y)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in masks:
                    p.mul_(masks[name])
        return loss

    return Made(step, made.batches, {**made.state, "masks": masks})


@program("step")
def regrown_connections(wrap: Wrap) -> Made:
    model = nn.Linear(6, 4)
    mask = (torch.rand(4, 6) < 0.5).float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, model.weight * mask, model.bias), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            kept = torch.where(mask > 0, model.weight.abs(), torch.inf).flatten()
            free = torch.where(mask > 0, -1.0, torch.rand(4, 6)).flatten()
            mask.view(-1)[kept.topk(2, largest=False).indices] = 0
            mask.view(-1)[free.topk(2).indices] = 1
        return loss.detach()

    return Made(wrap(step), some(_batch), {"model": model, "mask": mask, "optimizer": optimizer})


class Checkpointed(nn.Module):
    """Layers whose inner values are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 6)) for _ in "ab"
        )
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


@program(*DOORS)
def computed_again_in_backward(wrap: Wrap) -> Made:
    return _train(Checkpointed(), wrap)


@program(*DOORS)
def half_precision_by_autocast(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer})


@program(*DOORS, captures=4)
def scaled_losses(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "scaler": scaler})


@program(*DOORS)
def bfloat16_with_masters(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 4)).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(net(x.bfloat16()).float(), y)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "masters": masters, "optimizer": optimizer})


@program(*DOORS)
def spectral_norms(wrap: Wrap) -> Made:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(6, 12)),
        nn.LeakyReLU(0.1),
        parametrizations.spectral_norm(nn.Linear(12, 4)),
    )
    return _train(model, wrap)


class Skew(nn.Module):
    """A matrix that turns: the exponential of a skew one."""

    def forward(self, x: Tensor) -> Tensor:
        upper = x.triu(1)
        return torch.matrix_exp(upper - upper.T)


@program(*EVERY)
def weights_that_turn(wrap: Wrap) -> Made:
    turn = nn.Linear(6, 6, bias=False)
    parametrize.register_parametrization(turn, "weight", Skew())
    return _train(nn.Sequential(turn, nn.Linear(6, 4)), wrap)
