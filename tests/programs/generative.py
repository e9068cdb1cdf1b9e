"""Models that make data: autoencoders, adversaries, diffusion, flows, codes, masks, energies."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

EVERY, DOORS = ("step", "backend", "compile", "freeze"), ("step", "backend", "compile")


def _points() -> Tensor:
    return torch.randn(6, 4)


class Bottleneck(nn.Module):
    """An encoder that gives a mean and a logarithm of a variance, a draw, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean, self.spread = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.back, self.out = nn.Linear(3, 8), nn.Linear(8, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.inner(x))
        mean, log = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(log) * torch.exp(0.5 * log)
        return torch.sigmoid(self.out(F.relu(self.back(z)))), mean, log


@program(*EVERY)
def variational(wrap: Wrap) -> Made:
    model = Bottleneck()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor) -> float:
        optimizer.zero_grad()
        again, mean, log = net(x)
        reconstruction = F.binary_cross_entropy(again, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log - mean.pow(2) - log.exp())
        (reconstruction + divergence).backward()
        optimizer.step()
        return (reconstruction + divergence).item()

    batches = some(lambda: torch.rand(4, 12))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, batches))


@program(*DOORS)
def variational_with_distributions(wrap: Wrap) -> Made:
    encode, decode = nn.Linear(5, 4), nn.Linear(2, 5)
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], 1e-2)

    def bound(x: Tensor) -> Tensor:
        mean, raw = encode(x).chunk(2, -1)
        found = torch.distributions.Normal(mean, F.softplus(raw) + 1e-3, validate_args=False)
        z = found.rsample()
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean), validate_args=False)
        seen = torch.distributions.Bernoulli(logits=decode(z), validate_args=False)
        apart = torch.distributions.kl_divergence(found, prior).sum(-1)
        return (seen.log_prob(x).sum(-1) - 0.1 * apart).mean()

    measured = wrap(bound)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = -measured(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: torch.randint(0, 2, (4, 5)).float())
    return Made(step, batches, {"encode": encode, "decode": decode, "optimizer": optimizer})


def _players() -> tuple[nn.Module, nn.Module]:
    makes = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1),
    )
    judges = nn.Sequential(
        nn.Conv2d(1, 6, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.BatchNorm2d(6), nn.Conv2d(6, 1, 4)
    )
    for module in (*makes.modules(), *judges.modules()):
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0.0, 0.02)
    return makes, judges


@program("step", "backend", "compile", "freeze", captures=6)
def adversaries(wrap: Wrap) -> Made:
    makes, judges = _players()
    first = torch.optim.Adam(judges.parameters(), 2e-3, betas=(0.5, 0.999))
    second = torch.optim.Adam(makes.parameters(), 2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    make, judge = wrap(makes), wrap(judges)

    def step(real: Tensor) -> tuple[float, float, float]:
        judges.zero_grad()
        label = torch.full((real.size(0),), 1.0)
        of_real = criterion(judge(real).view(-1), label)
        of_real.backward()
        fake = make(torch.randn(real.size(0), 6, 1, 1))
        label.fill_(0.0)
        of_fake = criterion(judge(fake.detach()).view(-1), label)
        of_fake.backward()
        first.step()
        makes.zero_grad()
        label.fill_(1.0)
        loss = criterion(judge(fake).view(-1), label)
        loss.backward()
        second.step()
        return of_real.item(), of_fake.item(), loss.item()

    state = {"makes": makes, "judges": judges, "first": first, "second": second}
    frozen = [(torch.randn(2, 6, 1, 1),) for _ in range(2)]
    return Made(step, some(lambda: torch.rand(3, 1, 8, 8)), state, (makes, frozen))


@program("step")
def critic_with_gradient_penalty(wrap: Wrap) -> Made:
    makes, judges = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    first = torch.optim.RMSprop(judges.parameters(), 1e-3)
    second = torch.optim.RMSprop(makes.parameters(), 1e-3)

    def step(real: Tensor) -> Tensor:
        for _ in range(2):
            fake = makes(torch.randn(real.shape[0], 3)).detach()
            share = torch.rand(real.shape[0], 1)
            between = (share * real + (1 - share) * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(judges(between).sum(), between, create_graph=True)
            penalty = (slope.norm(2, dim=1) - 1).square().mean()
            loss = judges(fake).mean() - judges(real).mean() + 10 * penalty
            first.zero_grad()
            loss.backward()
            first.step()
        second.zero_grad()
        judged = -judges(makes(torch.randn(real.shape[0], 3))).mean()
        judged.backward()
        second.step()
        return torch.stack([loss.detach(), judged.detach()])

    state = {"makes": makes, "judges": judges, "first": first, "second": second}
    return Made(wrap(step), some(_points), state)


def time_features(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of a time."""
    waves = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
    angles = t[:, None].float() * waves[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Denoiser(nn.Module):
    """A perceptron that is told the time."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.time, self.out = nn.Linear(4, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.out(F.silu(self.enter(x) + self.time(time_features(t, 8))))


@program(*EVERY)
def denoising(wrap: Wrap) -> Made:
    model, kept = Denoiser(), 0.9
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    shares = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), dim=0)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        t = torch.randint(0, 50, (x.shape[0],))
        noise = torch.randn_like(x)
        share = shares[t].view(-1, 1)
        loss = F.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise, reduction="none")
        ratio = share / (1 - share)
        loss = (loss.mean(1, keepdim=True) * torch.clamp(ratio, max=5.0) / ratio).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - kept)
        return loss.detach()

    state = {"model": model, "average": average, "optimizer": optimizer}
    frozen = [(torch.randn(3, 4), torch.randint(0, 50, (3,))) for _ in range(2)]
    return Made(step, some(_points), state, (model, frozen))


@program(*DOORS)
def sampling_backwards_in_time(wrap: Wrap) -> Made:
    model = Denoiser().eval()
    betas = torch.linspace(1e-4, 0.2, 6)
    shares = torch.cumprod(1 - betas, dim=0)
    net = wrap(model)

    @torch.inference_mode()
    def step(x: Tensor) -> Tensor:
        x = x.clone()
        for number in reversed(range(6)):
            t = torch.full((x.shape[0],), number)
            guess = net(x, t)
            x = (x - betas[number] / (1 - shares[number]).sqrt() * guess) / (1 - betas[number]).sqrt()
            if number:
                x = x + betas[number].sqrt() * torch.randn_like(x)
        return x.clamp(-1, 1)

    return Made(step, some(_points), {"model": model})


class Block(nn.Module):
    """A convolution whose result is scaled and shifted by features of the time."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(enters, leaves, 3, padding=1), nn.GroupNorm(2, leaves)
        self.time = nn.Linear(8, 2 * leaves)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        return F.silu(self.norm(self.conv(x)) * (1 + scale) + shift)


class DownAndUp(nn.Module):
    """A small U-Net with attention over the pixels in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.up1 = Block(1, 4), Block(4, 8), Block(12, 4)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = time_features(t, 8)
        a = self.down1(x, t)
        b = self.down2(F.avg_pool2d(a, 2), t)
        flat = b.flatten(2).transpose(1, 2)
        b = b + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(b.shape)
        return self.out(self.up1(torch.cat([F.interpolate(b, scale_factor=2.0), a], dim=1), t))


@program(*EVERY)
def straight_paths_of_images(wrap: Wrap) -> Made:
    model = DownAndUp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        start, t = torch.randn_like(x), torch.rand(x.shape[0])
        between = torch.lerp(start, x, t[:, None, None, None])
        optimizer.zero_grad()
        loss = (net(between, t * 100) - (x - start)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    frozen = [(torch.randn(2, 1, 8, 8), torch.rand(2)) for _ in range(2)]
    batches = some(lambda: torch.rand(2, 1, 8, 8))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, frozen))


class Coupling(nn.Module):
    """Scales and shifts half of the channels by what the others say; can be undone."""

    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        b = b * scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), scale.sum(1)


class Flow(nn.Module):
    """Couplings in turn; gives the density of points."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(k % 2)) for k in range(3))
        self.register_buffer("turn", torch.linalg.qr(torch.randn(4, 4))[0])

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0])
        for layer in self.layers:
            x, change = layer(x)
            x = x @ self.turn
            total += change
        return total - 0.5 * (x.square() + math.log(2 * math.pi)).sum(1)


@program(*EVERY)
def flow_of_couplings(wrap: Wrap) -> Made:
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        loss = -net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(_points)
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, batches))


@program(*DOORS)
def flow_with_a_learned_matrix(wrap: Wrap) -> Made:
    matrix, shift = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4)), nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([matrix, shift], 0.05)

    def density(x: Tensor) -> Tensor:
        z = x @ matrix + shift
        _, size = torch.linalg.slogdet(matrix)
        return (size - 0.5 * z.square().sum(1)).mean()

    measured = wrap(density)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = -measured(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_points), {"matrix": matrix, "shift": shift, "optimizer": optimizer})


class Codebook(nn.Module):
    """Replaces each vector by the nearest of a table; gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 3)
        self.table.weight.data.uniform_(-1 / 8, 1 / 8)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat, codes = z.reshape(-1, 3), self.table.weight
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.pow(2).sum(1)
        nearest = far.argmin(1)
        found = self.table(nearest).view_as(z)
        loss = F.mse_loss(found, z.detach()) + 0.25 * F.mse_loss(found.detach(), z)
        share = F.one_hot(nearest, 8).float().mean(0)
        return z + (found - z).detach(), loss, torch.exp(-(share * (share + 1e-10).log()).sum())


class Coded(nn.Module):
    """An encoder, a codebook, a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(4, 6), Codebook(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found, loss, used = self.codes(self.encode(x).view(-1, 2, 3))
        return self.decode(found.flatten(1)), loss, used


@program(*EVERY)
def codes_from_a_table(wrap: Wrap) -> Made:
    model = Coded()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        again, loss, used = net(x)
        loss = loss + F.mse_loss(again, x)
        loss.backward()
        optimizer.step()
        return loss.detach(), used.detach()

    batches = some(_points)
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, batches))
