"""More models that make data: codes that follow averages, soft choices, masks, energies, pixels in order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

EVERY, DOORS = ("step", "backend", "compile", "freeze"), ("step", "backend", "compile")


class Following(nn.Module):
    """A codebook whose entries follow the averages of what is assigned to them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(6, 4))
        self.register_buffer("counts", torch.ones(6))
        self.register_buffer("sums", self.table.clone())

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(z, self.table).argmin(1)
        found = F.embedding(nearest, self.table)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(nearest, 6).type_as(z)
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(hot.t() @ z, alpha=0.1)
                total = self.counts.sum()
                smooth = (self.counts + 1e-5) / (total + 6e-5) * total
                self.table.copy_(self.sums / smooth.unsqueeze(1))
        return z + (found - z).detach(), F.mse_loss(z, found.detach())


@program(*DOORS)
def codes_that_follow_averages(wrap: Wrap) -> Made:
    encode, codes, decode = nn.Linear(4, 4), Following(), nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], 1e-2)
    quantize = wrap(codes)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        found, loss = quantize(encode(x))
        loss = F.mse_loss(decode(found), x) + 0.25 * loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"encode": encode, "codes": codes, "decode": decode, "optimizer": optimizer}
    return Made(step, some(lambda: torch.randn(6, 4)), state)


@program(*DOORS, captures=6)
def soft_choices_that_cool_down(wrap: Wrap) -> Made:
    encode, decode = nn.Linear(5, 6), nn.Linear(6, 5)
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], 1e-2)
    heat = {"now": 1.0}

    def loss_of(x: Tensor) -> Tensor:
        logits = encode(x).view(-1, 2, 3)
        chosen = F.gumbel_softmax(logits, tau=heat["now"], hard=True)
        return F.mse_loss(decode(chosen.flatten(1)), x) - 0.01 * F.log_softmax(logits, -1).mean()

    measured = wrap(loss_of)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(x)
        loss.backward()
        optimizer.step()
        heat["now"] = max(0.5, heat["now"] * 0.9)
        return loss.detach()

    state = {"encode": encode, "decode": decode, "optimizer": optimizer, "heat": heat}
    return Made(step, some(lambda: torch.randn(4, 5)), state)


class Masked(nn.Linear):
    """A linear layer of which a mask lets only some weights through."""

    def __init__(self, enters: int, leaves: int, mask: Tensor) -> None:
        super().__init__(enters, leaves)
        self.register_buffer("mask", mask.to(torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


@program(*EVERY)
def masked_autoregression(wrap: Wrap) -> Made:
    order, inner = torch.arange(6), torch.randint(0, 5, (10,))
    model = nn.Sequential(
        Masked(6, 10, inner[:, None] >= order[None]), nn.ReLU(), Masked(10, 6, order[:, None] > inner[None])
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-4)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x), x, reduction="none").sum(1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: torch.randint(0, 2, (4, 6)).float())
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, batches))


class Ordered(nn.Conv2d):
    """A convolution that sees pixels above and to the left only; it clears the other weights in place."""

    def __init__(self, kind: str, enters: int, leaves: int) -> None:
        super().__init__(enters, leaves, 3, padding=1)
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 1 + (kind == "B") :] = 0
        mask[:, :, 2:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return super().forward(x)


@program(*DOORS)
def pixels_in_order(wrap: Wrap) -> Made:
    model = nn.Sequential(Ordered("A", 1, 4), nn.BatchNorm2d(4), nn.ReLU(True), Ordered("B", 4, 4), nn.Conv2d(4, 3, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x.unsqueeze(1) / 2), x.long())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: torch.randint(0, 3, (2, 6, 6)).float()), {"model": model, "optimizer": optimizer})


@program("step")
def energy_with_langevin_draws(wrap: Wrap) -> Made:
    energy = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(energy.parameters(), 1e-2, betas=(0.0, 0.999))
    pool = torch.randn(16, 2)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        which = torch.randint(0, 16, (x.shape[0],))
        fake = pool[which].clone().requires_grad_(True)
        for _ in range(3):
            (slope,) = torch.autograd.grad(energy(fake).sum(), fake)
            fake = (fake - 0.1 * slope.clamp(-1, 1) + 0.05 * torch.randn_like(fake)).detach().requires_grad_(True)
        pool[which] = fake.detach()
        optimizer.zero_grad()
        real, made = energy(x), energy(fake.detach())
        loss = (real - made).mean() + 0.1 * (real**2 + made**2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), fake.detach()

    state = {"energy": energy, "optimizer": optimizer, "pool": pool}
    return Made(wrap(step), some(lambda: torch.randn(4, 2)), state)


@program("step", "compile")
def score_matching(wrap: Wrap) -> Made:
    score = nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(score.parameters(), 1e-2)

    def loss_of(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        found, direction = score(x), torch.randn_like(x)
        (turned,) = torch.autograd.grad((found * direction).sum(), x, create_graph=True)
        return ((turned * direction).sum(1) + 0.5 * found.square().sum(1)).mean()

    measured = wrap(loss_of)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: torch.randn(5, 2)), {"score": score, "optimizer": optimizer})


@program(*DOORS)
def contrastive_divergence(wrap: Wrap) -> Made:
    weights = torch.randn(6, 4) * 0.1
    seen_bias, hidden_bias = torch.zeros(6), torch.zeros(4)

    def gibbs(seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chances = torch.sigmoid(seen @ weights + hidden_bias)
        hidden = torch.bernoulli(chances)
        again = torch.bernoulli(torch.sigmoid(hidden @ weights.t() + seen_bias))
        return chances, again, torch.sigmoid(again @ weights + hidden_bias)

    once = wrap(gibbs)

    @torch.no_grad()
    def step(seen: Tensor) -> Tensor:
        chances, again, later = once(seen)
        weights.add_(seen.t() @ chances - again.t() @ later, alpha=0.05)
        seen_bias.add_((seen - again).sum(0), alpha=0.05)
        hidden_bias.add_((chances - later).sum(0), alpha=0.05)
        return (seen - again).square().mean()

    state = {"weights": weights, "seen": seen_bias, "hidden": hidden_bias}
    return Made(step, some(lambda: torch.randint(0, 2, (5, 6)).float()), state)


@program(*DOORS)
def mixture_density(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 9))
    optimizer = torch.optim.Rprop(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        weights, means, logs = net(x).split(3, dim=1)
        inner = -0.5 * ((y - means) * torch.exp(-logs)).square() - logs
        loss = -torch.logsumexp(F.log_softmax(weights, 1) + inner, dim=1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: (torch.randn(6, 1), torch.randn(6, 1))), {"model": model, "optimizer": optimizer})
