"""Programs that differentiate in unusual ways: inner loops, local losses, attacks, hooks, manual loops."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.programs.harness import Made, Wrap, program, some

INSIDE, DOORS = ("step", "compile"), ("step", "backend", "compile")


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def _tasks() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(2, 4, 3), torch.randn(2, 4, 1), torch.randn(2, 4, 3), torch.randn(2, 4, 1)


def _inner(params: dict[str, Tensor], model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    for _ in range(2):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        slopes = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {name: p - 0.1 * g for (name, p), g in zip(params.items(), slopes, strict=True)}
    return params


@program(*INSIDE)
def steps_through_steps(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_of(xs: Tensor, ys: Tensor, later_xs: Tensor, later_ys: Tensor) -> Tensor:
        total = torch.zeros(())
        for x, y, later_x, later_y in zip(xs, ys, later_xs, later_ys, strict=True):
            params = _inner(dict(model.named_parameters()), model, x, y)
            total = total + F.mse_loss(functional_call(model, params, (later_x,)), later_y)
        return total / len(xs)

    measured = wrap(loss_of)

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_tasks), {"model": model, "optimizer": optimizer})


@program(*INSIDE)
def rates_that_are_learned(wrap: Wrap) -> Made:
    weights = [torch.randn(3, 8).mul_(0.3).requires_grad_(), torch.randn(8, 1).mul_(0.3).requires_grad_()]
    rates = nn.Parameter(torch.full((2,), -2.0))
    optimizer = torch.optim.SGD([*weights, rates], 0.1)

    def predict(ws: list[Tensor], x: Tensor) -> Tensor:
        return torch.tanh(x @ ws[0]) @ ws[1]

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        slopes = torch.autograd.grad(F.mse_loss(predict(weights, x), y), weights, create_graph=True)
        fast = [w - rate.exp() * g for w, rate, g in zip(weights, rates, slopes, strict=True)]
        return F.mse_loss(predict(fast, x.flip(0)), y.flip(0))

    measured = wrap(loss_of)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(5, 3), torch.randn(5, 1)))
    return Made(step, batches, {"weights": weights, "rates": rates, "optimizer": optimizer})


@program("step", "backend")
def towards_what_was_learned(wrap: Wrap) -> Made:
    model = _net()
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(3):
            loss = F.mse_loss(net(x), y)
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), slopes, strict=True):
                    p.sub_(0.1 * g)
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old + 0.5 * (p - old))
        return loss.detach()

    return Made(step, some(lambda: (torch.randn(4, 3), torch.randn(4, 1))), {"model": model})


@program(*DOORS)
def prototypes(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(shown: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        ways, shots = shown.shape[:2]
        centers = net(shown.flatten(0, 1)).view(ways, shots, -1).mean(1)
        far = torch.cdist(net(asked.flatten(0, 1)), centers).pow(2)
        target = torch.arange(ways).repeat_interleave(asked.shape[1])
        loss = F.cross_entropy(-far, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), (far.argmin(1) == target).float().mean()

    batches = some(lambda: (torch.randn(3, 2, 5), torch.randn(3, 2, 5)))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Local(nn.Linear):
    """A layer with an optimizer of its own, which learns to be active for good data and quiet for bad."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__(enters, leaves)
        self.optimizer = torch.optim.Adam(self.parameters(), 0.03)

    def forward(self, x: Tensor) -> Tensor:
        x = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(x @ self.weight.T + self.bias.unsqueeze(0))

    def learn(self, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step, and give what the next layer is to see."""
        a, b = self.forward(good).pow(2).mean(1), self.forward(bad).pow(2).mean(1)
        loss = F.softplus(torch.cat([2.0 - a, b - 2.0])).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.forward(good).detach(), self.forward(bad).detach()


@program("step")
def layers_that_learn_alone(wrap: Wrap) -> Made:
    layers = nn.ModuleList([Local(8, 10), Local(10, 6)])

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        good, bad = x.clone(), x.clone()
        good[:, :3] = F.one_hot(y, 3)
        bad[:, :3] = F.one_hot(y[torch.randperm(len(y))], 3)
        for layer in layers:
            good, bad = layer.learn(good, bad)
        return good, bad

    batches = some(lambda: (torch.rand(5, 8), torch.randint(0, 3, (5,))))
    state = {"layers": layers, "first": layers[0].optimizer, "second": layers[1].optimizer}
    return Made(wrap(step), batches, state)


@program("step", captures=4)
def picture_in_a_style(wrap: Wrap) -> Made:
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3)).eval().requires_grad_(False)
    picture = torch.rand(1, 3, 10, 10).requires_grad_(True)
    optimizer = torch.optim.Adam([picture], 0.05)

    def gram(x: Tensor) -> Tensor:
        flat = x.flatten(2).squeeze(0)
        return flat @ flat.t() / flat.numel()

    def step(content: Tensor, style: Tensor) -> Tensor:
        with torch.no_grad():
            picture.clamp_(0, 1)
        optimizer.zero_grad()
        loss, x, c, s = torch.zeros(()), picture, content, style
        for layer in features:
            x, c, s = layer(x), layer(c), layer(s)
            loss = loss + F.mse_loss(x, c.detach()) + 100 * F.mse_loss(gram(x), gram(s).detach())
        smooth = (picture[..., 1:] - picture[..., :-1]).abs().mean()
        (loss + smooth).backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.rand(1, 3, 10, 10), torch.rand(1, 3, 10, 10)))
    return Made(wrap(step), batches, {"features": features, "picture": picture, "optimizer": optimizer})


@program("step", "backend", captures=6)
def trained_on_attacks(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    net = wrap(model)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        delta = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_(True)
        for _ in range(2):
            loss = F.cross_entropy(net(x + delta), y)
            loss.backward()
            with torch.no_grad():
                delta += 0.05 * delta.grad.sign()
                delta.clamp_(-0.1, 0.1)
            delta.grad.zero_()
        return (x + delta).detach()

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        attacked = attack(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(attacked), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), attacked

    batches = some(lambda: (torch.rand(4, 6), torch.randint(0, 3, (4,))))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Reversed(torch.autograd.Function):
    """Nothing forward; turns gradients around backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.neg() * ctx.share, None


@program("step", "compile", captures=6)
def domains_that_look_alike(wrap: Wrap) -> Made:
    body, label, domain = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *label.parameters(), *domain.parameters()], 0.1)
    progress = {"share": 0.0}

    def loss_of(source: Tensor, y: Tensor, target: Tensor) -> Tensor:
        features = torch.relu(body(torch.cat([source, target])))
        where = torch.tensor([0] * len(source) + [1] * len(target))
        turned = Reversed.apply(features, progress["share"])
        return F.cross_entropy(label(features[: len(source)]), y) + F.cross_entropy(domain(turned), where)

    measured = wrap(loss_of)

    def step(source: Tensor, y: Tensor, target: Tensor) -> Tensor:
        progress["share"] += 0.1
        optimizer.zero_grad()
        loss = measured(source, y, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(4, 6), torch.randint(0, 3, (4,)), torch.randn(3, 6)))
    state = {"body": body, "label": label, "domain": domain, "optimizer": optimizer, "progress": progress}
    return Made(step, batches, state)


@program(*INSIDE)
def clipped_for_each_example(wrap: Wrap) -> Made:
    model = _net()
    noise = torch.Generator().manual_seed(1)

    def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, params, (x[None],)), y[None])

    def slopes_of(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        params = {name: p.detach() for name, p in model.named_parameters()}
        slopes = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in slopes.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return {name: torch.einsum("b,b...->...", scale, g) / len(x) for name, g in slopes.items()}

    found = wrap(slopes_of)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for (_, p), g in zip(model.named_parameters(), found(x, y).values(), strict=True):
                p.sub_(0.1 * (g + 0.01 * torch.randn(g.shape, generator=noise)))
        return sum(p.norm() for p in model.parameters()).detach()

    return Made(step, some(lambda: (torch.randn(4, 3), torch.randn(4, 1))), {"model": model, "noise": noise})


@program(*DOORS, captures=6)
def loops_by_hand_in_a_module(wrap: Wrap) -> Made:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.steps = nn.Linear(6, 8), nn.Linear(8, 3), 0

        def configure(self) -> None:
            self.first = torch.optim.Adam(self.body.parameters(), 1e-2)
            self.second = torch.optim.SGD(self.head.parameters(), 1e-1)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.first, 0.9)

        def training_step(self, x: Tensor, y: Tensor, number: int) -> dict[str, Tensor]:
            logits = self.head(torch.relu(run(x)))
            loss = F.cross_entropy(logits, y)
            self.first.zero_grad()
            self.second.zero_grad()
            loss.backward()
            self.first.step()
            if number % 2:
                self.second.step()
            self.schedule.step()
            self.steps += 1
            return {"loss": loss.detach(), "right": (logits.argmax(-1) == y).float().mean()}

    task = Task()
    task.configure()
    run = wrap(task.body)
    batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,)), number) for number in range(5)]
    state = {"task": task, "first": task.first, "second": task.second, "schedule": task.schedule}
    return Made(task.training_step, batches, state)


@program("step", "compile")
def hooks_on_gradients(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[2].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))

    def halve(p: Tensor) -> None:
        p.grad.mul_(0.5)

    for p in model[0].parameters():
        p.register_post_accumulate_grad_hook(halve)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        inner = net(x)
        inner.register_hook(lambda g: g * 2)
        loss = F.mse_loss(inner, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(lambda: (torch.randn(4, 3), torch.randn(4, 1))), {"model": model, "optimizer": optimizer})
