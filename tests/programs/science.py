"""Physics and signals: equations by their residuals, flows in time, spectra, implicit pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

DOORS, EVERY = ("step", "backend", "compile"), ("step", "backend", "compile", "freeze")


def _slope(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


@program("step", "compile")
def heat_by_its_residual(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_of(x: Tensor, t: Tensor) -> Tensor:
        x, t = x.clone().requires_grad_(True), t.clone().requires_grad_(True)
        u = model(torch.cat([x, t], 1))
        inside = (_slope(u, t) - 0.1 * _slope(_slope(u, x), x)).pow(2).mean()
        start = model(torch.cat([x, torch.zeros_like(t)], 1)) + torch.sin(math.pi * x)
        return inside + start.pow(2).mean()

    measured = wrap(loss_of)

    def step(x: Tensor, t: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(x, t)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: (torch.rand(5, 1), torch.rand(5, 1))), {"model": model, "optimizer": optimizer})


@program("step", "compile")
def unknown_rate_of_decay(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))
    rate = nn.Parameter(torch.tensor(0.5))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [rate], "lr": 0.1}], 1e-2)

    def loss_of(t: Tensor, seen: Tensor) -> Tensor:
        t = t.clone().requires_grad_()
        u = model(t)
        return F.mse_loss(u, seen) + (_slope(u, t) + rate * u).square().mean()

    measured = wrap(loss_of)

    def step(t: Tensor, seen: Tensor) -> tuple[float, float]:
        loss = measured(t, seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), rate.item()

    state = {"model": model, "rate": rate, "optimizer": optimizer}
    return Made(step, some(lambda: (torch.rand(6, 1), torch.rand(6, 1))), state)


@program("step", "compile")
def energy_that_is_kept(wrap: Wrap) -> Made:
    energy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.Adam(energy.parameters(), 1e-2)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    def field(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        return _slope(energy(x).sum(), x) @ turn.t()

    flow = wrap(field)

    def step(x: Tensor, speed: Tensor) -> Tensor:
        loss = (flow(x) - speed).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    state = {"energy": energy, "optimizer": optimizer}
    return Made(step, some(lambda: (torch.randn(5, 2), torch.randn(5, 2))), state)


def _euler(f: Callable[[Tensor, Tensor], Tensor], y: Tensor, times: Tensor) -> Tensor:
    path = [y]
    for now, later in pairwise(times):
        y = y + (later - now) * f(now, y)
        path.append(y)
    return torch.stack(path)


def _runge_kutta(f: Callable[[Tensor, Tensor], Tensor], y: Tensor, times: Tensor) -> Tensor:
    path = [y]
    for now, later in pairwise(times):
        h = later - now
        k1 = f(now, y)
        k2 = f(now + h / 2, y + h / 2 * k1)
        k3 = f(now + h / 2, y + h / 2 * k2)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(now + h, y + h * k3))
        path.append(y)
    return torch.stack(path)


def _orbit(wrap: Wrap, solve: Callable[..., Tensor]) -> Made:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-2)
    times = torch.linspace(0.0, 1.0, 4)

    def path(y: Tensor) -> Tensor:
        return solve(lambda t, y: net(torch.cat([y**3, t.expand(y.shape[0], 1)], 1)), y, times)

    solved = wrap(path)

    def step(start: Tensor, wanted: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (solved(start) - wanted).abs().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(3, 2), torch.randn(4, 3, 2)))
    return Made(step, batches, {"net": net, "optimizer": optimizer})


@program(*DOORS)
def orbit_by_euler(wrap: Wrap) -> Made:
    return _orbit(wrap, _euler)


@program(*DOORS)
def orbit_by_runge_kutta(wrap: Wrap) -> Made:
    return _orbit(wrap, _runge_kutta)


@program(*DOORS)
def noisy_paths(wrap: Wrap) -> Made:
    drift, spread = nn.Linear(2, 2), nn.Parameter(torch.full((2,), -1.0))
    optimizer = torch.optim.Adam([*drift.parameters(), spread], 1e-2)

    def path(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x + 0.1 * drift(x) + 0.1**0.5 * spread.exp() * torch.randn(x.shape)
        return x

    end = wrap(path)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = end(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: torch.randn(4, 2)), {"drift": drift, "spread": spread, "optimizer": optimizer})


class Waves(nn.Module):
    """Layers of sines, from coordinates to a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 12), nn.Linear(12, 12)])
        self.out = nn.Linear(12, 1)
        with torch.no_grad():
            self.layers[0].weight.uniform_(-0.5, 0.5)
            self.layers[1].weight.uniform_(-math.sqrt(6 / 12) / 30, math.sqrt(6 / 12) / 30)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30 * layer(x))
        return self.out(x)


@program(*EVERY)
def picture_in_sines(wrap: Wrap) -> Made:
    model = Waves()
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5), indexing="ij"), -1).view(
        -1, 2
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    net = wrap(model)

    def step(picture: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((net(grid) - picture) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"model": model, "optimizer": optimizer}
    return Made(step, some(lambda: torch.rand(25, 1)), state, (model, [(torch.rand(7, 2),), (torch.rand(7, 2),)]))


@program("step", "compile")
def surface_with_slopes_of_one(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(3, 12), nn.Softplus(beta=100), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(points: Tensor, normals: Tensor) -> Tensor:
        free = (torch.rand_like(points) * 2 - 1).requires_grad_(True)
        near = points.clone().requires_grad_(True)
        value = model(near)
        flat = (_slope(model(free), free).norm(dim=-1) - 1).square().mean()
        return value.abs().mean() + 0.1 * flat + (_slope(value, near) - normals).norm(dim=-1).mean()

    measured = wrap(loss_of)

    def step(points: Tensor, normals: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(points, normals)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(5, 3), F.normalize(torch.randn(5, 3), dim=1)))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Frequencies(nn.Module):
    """Weights the lowest frequencies of a signal by complex matrices."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width**2)
        self.short = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], x.shape[1], spectrum.shape[-1], dtype=torch.cfloat)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        return F.gelu(torch.fft.irfft(out, n=x.size(-1)) + self.short(x))


@program(*EVERY)
def operator_over_frequencies(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Conv1d(1, 4, 1), Frequencies(4, 3), Frequencies(4, 3), nn.Conv1d(4, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        apart = (net(x) - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)
        apart.sum().backward()
        optimizer.step()
        scheduler.step()
        return apart.detach()

    batches = some(lambda: (torch.randn(2, 1, 16), torch.randn(2, 1, 16)))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Made(step, batches, state, (model, [(x,) for x, _ in batches]))


@program(*DOORS)
def spectra_at_several_resolutions(wrap: Wrap) -> Made:
    model = nn.Conv1d(1, 1, 5, padding=2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_of(made: Tensor, wanted: Tensor) -> Tensor:
        total = torch.zeros(())
        for size in (8, 16):
            window = torch.hann_window(size)
            a, b = (torch.stft(x, size, size // 2, window=window, return_complex=True).abs() for x in (made, wanted))
            total = total + (b - a).norm() / b.norm() + F.l1_loss((a + 1e-5).log(), (b + 1e-5).log())
        return total

    net, measured = wrap(model), wrap(loss_of)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(net(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(2, 1, 48), torch.randn(2, 48)))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Forecast(nn.Module):
    """Two LSTM cells, one value after the other, which then go on from their own answers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.LSTMCell(1, 6), nn.LSTMCell(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, future: int = 0) -> Tensor:
        h1, c1, h2, c2 = (torch.zeros(x.size(0), 6, dtype=torch.double) for _ in range(4))
        outputs = []
        for value in x.split(1, dim=1):
            h1, c1 = self.one(value, (h1, c1))
            h2, c2 = self.two(h1, (h2, c2))
            outputs.append(self.out(h2))
        for _ in range(future):
            h1, c1 = self.one(outputs[-1], (h1, c1))
            h2, c2 = self.two(h1, (h2, c2))
            outputs.append(self.out(h2))
        return torch.cat(outputs, dim=1)


@program(*DOORS, captures=4)
def forecast_in_double(wrap: Wrap) -> Made:
    model = Forecast().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    net = wrap(model)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x[:, :-1]), x[:, 1:])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            later = net(x[:, -2:], future=3)
        return loss.detach(), later

    return Made(step, some(lambda: torch.randn(2, 6, dtype=torch.double)), {"model": model, "optimizer": optimizer})
