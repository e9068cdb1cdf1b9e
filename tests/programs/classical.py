"""Classical methods written with tensors: filters, factorisations, mixtures, samplers, second-order steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

DOORS, INSIDE = ("step", "backend", "compile"), ("step", "compile")


@program(*DOORS)
def gaussian_process(wrap: Wrap) -> Made:
    length, scale, noise = (nn.Parameter(torch.tensor(v)) for v in (0.0, 0.0, -2.0))
    optimizer = torch.optim.Adam([length, scale, noise], 0.1)

    def evidence(x: Tensor, y: Tensor) -> Tensor:
        far = torch.cdist(x, x).square()
        cover = (2 * scale).exp() * torch.exp(-0.5 * far / (2 * length).exp())
        cover = cover + ((2 * noise).exp() + 1e-4) * torch.eye(x.shape[0])
        root = torch.linalg.cholesky(cover)
        weight = torch.cholesky_solve(y[:, None], root)
        return -0.5 * (y @ weight).sum() - root.diagonal().log().sum() - 0.5 * len(y) * math.log(2 * math.pi)

    measured = wrap(evidence)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = -measured(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"length": length, "scale": scale, "noise": noise, "optimizer": optimizer}
    return Made(step, some(lambda: (torch.randn(6, 2), torch.randn(6))), state)


@program(*DOORS)
def kalman_filter(wrap: Wrap) -> Made:
    mean, cover = torch.zeros(2), torch.eye(2)
    move, look = torch.tensor([[1.0, 0.1], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    drift, blur = 0.01 * torch.eye(2), 0.1 * torch.eye(1)

    def track(mean: Tensor, cover: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, cover = move @ mean, move @ cover @ move.T + drift
        surprise = seen - look @ mean
        spread = look @ cover @ look.T + blur
        gain = torch.linalg.solve(spread, look @ cover).T
        return mean + gain @ surprise, (torch.eye(2) - gain @ look) @ cover, surprise

    once = wrap(track)

    def step(seen: Tensor) -> Tensor:
        later, spread, surprise = once(mean, cover, seen)
        mean.copy_(later)
        cover.copy_((spread + spread.T) / 2)
        return surprise

    return Made(step, some(lambda: torch.randn(1), 5), {"mean": mean, "cover": cover})


@program(*DOORS)
def learned_filter(wrap: Wrap) -> Made:
    move, noise = nn.Parameter(torch.eye(2) * 0.9), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([move, noise], 1e-2)

    def likelihood(series: Tensor) -> Tensor:
        mean, cover, total = torch.zeros(2), torch.eye(2), series.new_zeros(())
        for seen in series:
            mean, cover = move @ mean, move @ cover @ move.T + torch.diag(noise.exp())
            spread = cover + 0.5 * torch.eye(2)
            apart = seen - mean
            solved = torch.linalg.solve(spread, apart)
            total = total - 0.5 * (apart @ solved + torch.logdet(spread))
            mean, cover = mean + cover @ solved, cover - cover @ torch.linalg.solve(spread, cover)
        return total

    measured = wrap(likelihood)

    def step(series: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = -measured(series)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: torch.randn(4, 2)), {"move": move, "noise": noise, "optimizer": optimizer})


class Factors(nn.Module):
    """Users and items as vectors with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(7, 4), nn.Embedding(9, 4)
        self.user_bias, self.item_bias = nn.Embedding(7, 1), nn.Embedding(9, 1)
        nn.init.zeros_(self.user_bias.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        inner = (self.users(user) * self.items(item)).sum(1)
        return inner + self.user_bias(user).squeeze() + self.item_bias(item).squeeze()


@program("step", "backend", "compile", "freeze")
def factors_of_ratings(wrap: Wrap) -> Made:
    model = Factors()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=1e-3)
    net = wrap(model)

    def step(user: Tensor, item: Tensor, rating: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.mse_loss(net(user, item), rating)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    batches = some(lambda: (torch.randint(0, 7, (6,)), torch.randint(0, 9, (6,)), torch.rand(6) * 5))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(u, i) for u, i, _ in batches]))


@program(*DOORS)
def alternating_least_squares(wrap: Wrap) -> Made:
    left, right = torch.randn(5, 2), torch.randn(6, 2)

    def solve(fixed: Tensor, wanted: Tensor) -> Tensor:
        return torch.linalg.solve(fixed.T @ fixed + 0.1 * torch.eye(2), fixed.T @ wanted).T

    once = wrap(solve)

    def step(ratings: Tensor) -> Tensor:
        left[:] = once(right, ratings.T)
        right[:] = once(left, ratings)
        return (left @ right.T - ratings).norm()

    return Made(step, some(lambda: torch.randn(5, 6)), {"left": left, "right": right})


@program(*INSIDE)
def newton_for_logistic_regression(wrap: Wrap) -> Made:
    weight = torch.zeros(3, requires_grad=True)

    def loss_of(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x @ w, y) + 0.01 * w.square().sum()

    def direction(x: Tensor, y: Tensor) -> Tensor:
        w = weight.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(loss_of(w, x, y), w, create_graph=True)
        rows = [torch.autograd.grad(part, w, retain_graph=True)[0] for part in slope]
        return torch.linalg.solve(torch.stack(rows), slope.detach())

    found = wrap(direction)

    def step(x: Tensor, y: Tensor) -> Tensor:
        move = found(x, y)
        with torch.no_grad():
            weight.sub_(move)
        return move.norm()

    batches = some(lambda: (torch.randn(8, 3), torch.randint(0, 2, (8,)).float()))
    return Made(step, batches, {"weight": weight})


@program(*DOORS)
def logistic_regression_by_hand(wrap: Wrap) -> Made:
    weight, bias = torch.zeros(4, 3, requires_grad=True), torch.zeros(3, requires_grad=True)

    def model(x: Tensor) -> Tensor:
        z = x @ weight + bias
        return z - z.exp().sum(-1).log().unsqueeze(-1)

    predict = wrap(model)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logs = predict(x)
        loss = -logs[range(y.shape[0]), y].mean()
        loss.backward()
        with torch.no_grad():
            for w in (weight, bias):
                w -= w.grad * 0.5
                w.grad.zero_()
        return loss.detach(), (torch.argmax(logs, dim=1) == y).float().mean()

    batches = some(lambda: (torch.randn(5, 4), torch.randint(0, 3, (5,))))
    return Made(step, batches, {"weight": weight, "bias": bias})


@program(*DOORS)
def means_of_clusters(wrap: Wrap) -> Made:
    centers = torch.randn(3, 2)

    def assign(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(x, centers).argmin(1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, x)
        counts = torch.bincount(nearest, minlength=3).unsqueeze(1)
        return nearest, torch.where(counts > 0, sums / counts.clamp(min=1), centers)

    once = wrap(assign)

    def step(x: Tensor) -> Tensor:
        for _ in range(2):
            nearest, later = once(x, centers)
            centers.copy_(later)
        return nearest

    return Made(step, some(lambda: torch.randn(9, 2)), {"centers": centers})


@program(*DOORS)
def mixture_by_expectation(wrap: Wrap) -> Made:
    weights, means, spreads = torch.full((2,), 0.5), torch.randn(2, 3), torch.ones(2, 3)

    def once(x: Tensor) -> tuple[Tensor, Tensor]:
        apart = (x[:, None] - means) ** 2 / spreads
        logs = weights.log() - 0.5 * (apart + spreads.log()).sum(-1)
        total = torch.logsumexp(logs, 1, keepdim=True)
        return torch.exp(logs - total), total.mean()

    expect = wrap(once)

    def step(x: Tensor) -> Tensor:
        share, total = expect(x)
        mass = share.sum(0)
        weights.copy_(mass / mass.sum())
        means.copy_(share.T @ x / mass[:, None])
        spreads.copy_(share.T @ x**2 / mass[:, None] - means**2 + 1e-3)
        return total

    return Made(step, some(lambda: torch.randn(8, 3)), {"weights": weights, "means": means, "spreads": spreads})


@program(*DOORS)
def metropolis(wrap: Wrap) -> Made:
    place, draws, taken = torch.zeros(4, 2), torch.Generator().manual_seed(5), torch.zeros(4)

    def log_density(x: Tensor) -> Tensor:
        return -((1 - x[:, 0]) ** 2) - 10 * (x[:, 1] - x[:, 0] ** 2) ** 2

    density = wrap(log_density)

    def step(width: Tensor) -> Tensor:
        tried = place + width * torch.randn(4, 2, generator=draws)
        accept = torch.rand(4, generator=draws).log() < density(tried) - density(place)
        place.copy_(torch.where(accept[:, None], tried, place))
        taken.add_(accept)
        return accept

    return Made(step, some(lambda: torch.rand(())), {"place": place, "taken": taken, "draws": draws})


@program(*INSIDE)
def hamiltonian_draws(wrap: Wrap) -> Made:
    place = torch.randn(3, requires_grad=True)

    def energy(x: Tensor) -> Tensor:
        return 0.5 * (x**2).sum() + torch.cos(3 * x).sum()

    def propose(start: Tensor) -> tuple[Tensor, Tensor]:
        x, speed = start.detach().requires_grad_(True), torch.randn(3)
        before = energy(x) + 0.5 * speed.square().sum()
        for _ in range(3):
            speed = speed - 0.05 * torch.autograd.grad(energy(x), x)[0]
            x = (x + 0.1 * speed).detach().requires_grad_(True)
            speed = speed - 0.05 * torch.autograd.grad(energy(x), x)[0]
        return x.detach(), (before - energy(x) - 0.5 * speed.square().sum()).detach()

    proposed = wrap(propose)

    def step(heat: Tensor) -> Tensor:
        x, gain = proposed(place)
        accept = torch.rand(()) < torch.exp(gain / heat)
        with torch.no_grad():
            place.copy_(torch.where(accept, x, place))
        return accept

    return Made(step, some(lambda: torch.ones(())), {"place": place})


@program(*DOORS)
def principal_directions(wrap: Wrap) -> Made:
    mean, directions = torch.zeros(4), torch.zeros(2, 4)

    def fit(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        center = x.mean(0)
        _, sizes, rows = torch.linalg.svd(x - center, full_matrices=False)
        signs = torch.sign(rows[:2].gather(1, rows[:2].abs().argmax(1, keepdim=True)))
        return center, rows[:2] * signs, sizes[:2] ** 2 / (x.shape[0] - 1)

    fitted = wrap(fit)

    def step(x: Tensor) -> Tensor:
        center, rows, sizes = fitted(x)
        mean.lerp_(center, 0.5)
        directions.copy_(rows)
        return sizes

    return Made(step, some(lambda: torch.randn(7, 4)), {"mean": mean, "directions": directions})


@program(*DOORS)
def transport_by_scaling(wrap: Wrap) -> Made:
    points = nn.Parameter(torch.randn(4, 2))
    optimizer = torch.optim.Adam([points], 0.1)

    def cost_of(x: Tensor, y: Tensor) -> Tensor:
        cost = (x[:, None] - y[None]).square().sum(-1)
        f, g = torch.zeros(x.shape[0]), torch.zeros(y.shape[0])
        for _ in range(5):
            f = -0.5 * torch.logsumexp((g[None] - cost) / 0.5 - math.log(len(y)), 1)
            g = -0.5 * torch.logsumexp((f[:, None] - cost) / 0.5 - math.log(len(x)), 0)
        return (torch.exp((f[:, None] + g[None] - cost) / 0.5) * cost).mean()

    measured = wrap(cost_of)

    def step(wanted: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(points, wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: torch.randn(5, 2)), {"points": points, "optimizer": optimizer})


@program("step")
def conjugate_gradients_until_small(wrap: Wrap) -> Made:
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def step(b: Tensor) -> tuple[Tensor, int]:
        x, r = torch.zeros_like(b), b.clone()
        p, count = r.clone(), 0
        while count < 8 and r.norm() > 1e-4:
            q = matrix @ p
            a = (r @ r) / (p @ q)
            x, after = x + a * p, r - a * q
            p, r = after + (after @ after) / (r @ r) * p, after
            count += 1
        return x, count

    return Made(wrap(step), some(lambda: torch.randn(4)), {"matrix": matrix})
