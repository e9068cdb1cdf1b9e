"""Optimizers written for one script: as classes, as functions over lists, and around torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.programs.harness import Made, Wrap, program, some


def _fit(wrap: Wrap, make: Callable[[nn.Module], Any], **more: Any) -> Made:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer, net = make(model), wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(6, 5), torch.randint(0, 3, (6,))))
    return Made(step, batches, {"model": model, "optimizer": optimizer, **more})


class Signs(Optimizer):
    """Moves by the sign of a mixture of momentum and gradient."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["average"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["average"] * b1 + p.grad * (1 - b1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["average"].mul_(b2).add_(p.grad, alpha=1 - b2)


@program("step", "backend")
def signs_of_momentum(wrap: Wrap) -> Made:
    return _fit(wrap, lambda model: Signs(model.parameters()))


class Factored(Optimizer):
    """Second moments as a row and a column; steps relative to the size of the weight."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"decay": -0.8, "threshold": 1.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, grad = self.state[p], p.grad
                if not state:
                    state["step"] = 0
                    if p.dim() == 2:
                        state["row"], state["column"] = torch.zeros(p.shape[0]), torch.zeros(p.shape[1])
                    else:
                        state["full"] = torch.zeros_like(p)
                state["step"] += 1
                size = p.square().mean().sqrt().clamp(min=1e-3)
                beta = 1.0 - math.pow(state["step"], group["decay"])
                square = grad.square() + 1e-30
                if p.dim() == 2:
                    row, column = state["row"], state["column"]
                    row.mul_(beta).add_(square.mean(-1), alpha=1 - beta)
                    column.mul_(beta).add_(square.mean(-2), alpha=1 - beta)
                    factor = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
                    update = factor * column.unsqueeze(-2).rsqrt() * grad
                else:
                    update = state["full"].mul_(beta).add_(square, alpha=1 - beta).rsqrt() * grad
                update.div_((update.square().mean().sqrt() / group["threshold"]).clamp_(min=1.0))
                p.add_(-update * size * min(1e-2, 1 / math.sqrt(state["step"])))


@program("step", "backend")
def factored_second_moments(wrap: Wrap) -> Made:
    return _fit(wrap, lambda model: Factored(model.parameters()))


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """A matrix with singular values near 1, by an iteration of odd polynomials."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    if matrix.size(0) > matrix.size(1):
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        inner = x @ x.T
        x = a * x + (b * inner + c * inner @ inner) @ x
    return (x.T if matrix.size(0) > matrix.size(1) else x).to(matrix.dtype)


class Orthogonal(Optimizer):
    """Momentum, made orthogonal; for matrices."""

    def __init__(self, params: Iterable[Any], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                kept.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(kept, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


@program("step", "backend")
def orthogonal_updates_for_matrices(wrap: Wrap) -> Made:
    class Both:
        def __init__(self, model: nn.Module) -> None:
            self.matrices = Orthogonal([p for p in model.parameters() if p.ndim == 2])
            self.rest = torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], 1e-3)

        def zero_grad(self) -> None:
            self.matrices.zero_grad()
            self.rest.zero_grad()

        def step(self) -> None:
            self.matrices.step()
            self.rest.step()

    return _fit(wrap, Both)


class Projected(Optimizer):
    """Moments of gradients that are projected to a few directions, which are found again every third step."""

    def __init__(self, params: Iterable[Any], rank: int = 2, every: int = 3) -> None:
        super().__init__(params, {"lr": 1e-2, "rank": rank, "every": every})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, grad = self.state[p], p.grad
                count = state.get("step", 0)
                if p.ndim == 2:
                    if count % group["every"] == 0:
                        state["basis"] = torch.linalg.svd(grad, full_matrices=False)[0][:, : group["rank"]]
                    grad = state["basis"].t() @ grad
                if count == 0:
                    state["mean"], state["square"] = torch.zeros_like(grad), torch.zeros_like(grad)
                state["step"] = count + 1
                state["mean"].mul_(0.9).add_(grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(grad, grad, value=0.001)
                update = state["mean"] / (state["square"].sqrt() + 1e-8)
                p.add_(state["basis"] @ update if p.ndim == 2 else update, alpha=-group["lr"])


@program("step", "backend", captures=6)
def projected_gradients(wrap: Wrap) -> Made:
    return _fit(wrap, lambda model: Projected(model.parameters()))


class Sharpness(Optimizer):
    """Climbs to a worse place nearby, takes the gradient there, and steps from the old place."""

    def __init__(self, params: Iterable[Any], base: type[Optimizer], rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)

    @torch.no_grad()
    def climb(self) -> None:
        """Move up the slope."""
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def _sharpness(wrap: Wrap, kind: type[Sharpness]) -> Made:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.climb()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(6, 5), torch.randint(0, 3, (6,))))
    return Made(step, batches, {"model": model, "base": optimizer.base})


@program("step", "backend")
def sharpness_with_replaced_data(wrap: Wrap) -> Made:
    return _sharpness(wrap, Sharpness)


class SharpnessInPlace(Sharpness):
    """The same, with moves that are taken back."""

    @torch.no_grad()
    def climb(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.norm(torch.stack([torch.norm(g, p=2) for g in grads]), p=2)
        for group in self.param_groups:
            for p in group["params"]:
                move = p.grad * (group["rho"] / (norm + 1e-12))
                p.add_(move)
                self.state[p]["move"] = move
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["move"])
        self.base.step()
        self.zero_grad()


@program("step", "backend")
def sharpness_in_place(wrap: Wrap) -> Made:
    return _sharpness(wrap, SharpnessInPlace)


class Slow:
    """Slow weights that follow fast ones every few steps; not an Optimizer."""

    def __init__(self, base: Optimizer, every: int = 2, share: float = 0.5) -> None:
        self.base, self.every, self.share, self.count = base, every, share, 0
        self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        self.base.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.base.step()
        self.count += 1
        if self.count % self.every == 0:
            fast = [p for group in self.base.param_groups for p in group["params"]]
            for kept, p in zip(self.slow, fast, strict=True):
                kept += self.share * (p - kept)
                p.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """What is compared."""
        return {"base": self.base.state_dict(), "count": self.count, "slow": self.slow}


@program("step", "backend")
def slow_and_fast_weights(wrap: Wrap) -> Made:
    return _fit(wrap, lambda model: Slow(torch.optim.Adam(model.parameters(), 1e-2)))


class Ratios(Optimizer):
    """Rates scaled, for each layer, by the ratio of the norms of weight and gradient."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 1e-4})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.add(p, alpha=group["weight_decay"])
                weight, slope = torch.norm(p), torch.norm(grad)
                one = torch.ones_like(weight)
                ratio = torch.where(weight > 0.0, torch.where(slope > 0, 1e-2 * weight / slope, one), one)
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                kept.mul_(group["momentum"]).add_(grad.mul(ratio))
                p.add_(kept, alpha=-group["lr"])


@program("step", "backend")
def ratios_of_norms(wrap: Wrap) -> Made:
    return _fit(wrap, lambda model: Ratios(model.parameters()))


@program("step", "backend")
def langevin_dynamics(wrap: Wrap) -> Made:
    class Langevin(Optimizer):
        def __init__(self, params: Iterable[Any]) -> None:
            super().__init__(params, {"lr": 1e-2})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-0.5 * group["lr"]).add_(torch.randn_like(p), alpha=group["lr"] ** 0.5)

    return _fit(wrap, lambda model: Langevin(model.parameters()))


@program("step", "backend")
def preconditioned_by_roots(wrap: Wrap) -> Made:
    class Roots(Optimizer):
        def __init__(self, params: Iterable[Any]) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    grad = p.grad.view(p.shape[0], -1)
                    left = self.state[p].setdefault("left", 1e-2 * torch.eye(p.shape[0]))
                    left.add_(grad @ grad.T)
                    values, vectors = torch.linalg.eigh(left)
                    root = vectors @ torch.diag(values.clamp(min=1e-6).pow(-0.5)) @ vectors.T
                    p.sub_(group["lr"] * (root @ grad).view_as(p))

    return _fit(wrap, lambda model: Roots(model.parameters()))


@program("step", "backend", "compile", captures=6)
def moments_in_plain_lists(wrap: Wrap) -> Made:
    weights = [torch.randn(5, 6).mul_(0.3).requires_grad_(), torch.zeros(6, requires_grad=True)]
    means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    clock = {"t": 0}
    predict = wrap(lambda x, w, b: F.log_softmax(x @ w + b, 1))

    def step(x: Tensor, y: Tensor) -> Tensor:
        clock["t"] += 1
        t = clock["t"]
        loss = F.nll_loss(predict(x, *weights), y)
        loss.backward()
        with torch.no_grad():
            for w, m, v in zip(weights, means, squares, strict=True):
                m += 0.1 * (w.grad - m)
                v += 0.01 * (w.grad**2 - v)
                w -= 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
                w.grad.zero_()
        return loss.detach()

    batches = some(lambda: (torch.randn(4, 5), torch.randint(0, 6, (4,))))
    return Made(step, batches, {"weights": weights, "means": means, "squares": squares, "clock": clock})
