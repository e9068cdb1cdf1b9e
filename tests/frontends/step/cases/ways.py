"""Unusual ways to train: optimizers of the user's own, steps within steps, sampling, functional gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.distributions import Beta, Categorical
from torch.func import functional_call, grad, vmap

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.twins import Call, Twin


class _Lion(optim.Optimizer):
    """Sign of an interpolated momentum, with decay; its state is made in the first step."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "calls": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update."""
        for group in self.param_groups:
            group["calls"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                first, second = group["betas"]
                update = state["average"].mul(first).add(p.grad, alpha=1 - first).sign_()
                p.mul_(1 - group["lr"] * 0.1).add_(update, alpha=-group["lr"])
                state["average"].lerp_(p.grad, 1 - second)


def _own_optimizer() -> Twin:
    p = Parts(_Lion)
    return p.twin()


def _closure() -> Twin:
    """An optimizer that calls the closure once."""
    p = Parts(optim.SGD, momentum=0.9)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(net(rows), labels)
            loss.backward()
            return loss

        return opt.step(closure)

    return p.twin(step)


def _sharpness() -> Twin:
    """Up the gradient, a second gradient there, back, and down with it."""
    p = Parts(optim.SGD, momentum=0.9)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        parameters = list(net.parameters())
        F.cross_entropy(net(rows), labels).backward()
        with torch.no_grad():
            norm = torch.stack([q.grad.norm() for q in parameters]).norm()
            moves = [q.grad * (0.05 / (norm + 1e-12)) for q in parameters]
            for q, move in zip(parameters, moves, strict=True):
                q.add_(move)
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        with torch.no_grad():
            for q, move in zip(parameters, moves, strict=True):
                q.sub_(move)
        opt.step()
        opt.zero_grad()
        return loss

    return p.twin(step)


def _meta() -> Twin:
    """One inner step on copies, through which the outer gradient goes."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        held = dict(net.named_parameters())
        inner = F.cross_entropy(functional_call(net, held, (rows,)), labels)
        grads = torch.autograd.grad(inner, list(held.values()), create_graph=True)
        moved = {name: q - 0.1 * g for (name, q), g in zip(held.items(), grads, strict=True)}
        loss = F.cross_entropy(functional_call(net, moved, (rows,)), labels)
        loss.backward()
        opt.step()
        return loss

    return p.twin(step)


def _per_sample() -> Twin:
    """Gradients of every row by itself, clipped, as private training has it."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    parts = Parts()
    opt = optim.SGD(model.parameters(), lr=0.1)

    def loss_of(held: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, held, (row[None],)), label[None])

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        held = {name: q.detach() for name, q in model.named_parameters()}
        grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(held, rows, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (0.5 / (norms + 1e-6)).clamp(max=1.0)
        for name, q in model.named_parameters():
            q.grad = torch.einsum("n,n...->...", factor, grads[name]) / len(rows)
        opt.step()
        return norms

    return Twin({"step": step}, lambda k: Call(parts.batch(k)), {"model": model}, {"opt": opt})


def _two_losses() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        out = net(rows)
        first, second = F.cross_entropy(out, labels), out.square().mean()
        first.backward(retain_graph=True)
        torch.autograd.backward([second, first * 0.1])
        opt.step()
        return torch.stack([first, second]).detach()

    return p.twin(step)


def _evaluates_in_between() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        net.eval()
        with torch.no_grad():
            told = net(rows).argmax(1)
        net.train()
        return loss.detach(), told

    return p.twin(step)


def _policy() -> Twin:
    """Actions are drawn, and the loss is their logarithm times a reward."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        opt.zero_grad()
        choice = Categorical(logits=net(rows), validate_args=False)
        action = choice.sample()
        loss = -(choice.log_prob(action) * (action == labels)).mean() - 0.01 * choice.entropy().mean()
        loss.backward()
        opt.step()
        return loss.detach(), action

    return p.twin(step)


def _mixed_up() -> Twin:
    """Batches mixed with themselves in another order, by a share that is drawn."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        share = Beta(0.4, 0.4, validate_args=False).sample()
        order = torch.randperm(len(rows))
        out = net(share * rows + (1 - share) * rows[order])
        loss = share * F.cross_entropy(out, labels) + (1 - share) * F.cross_entropy(out, labels[order])
        loss.backward()
        opt.step()
        return loss

    return p.twin(step)


def _sampled() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        out = F.gumbel_softmax(net(rows), tau=0.7, hard=True)
        drawn = torch.multinomial(torch.ones(7), 5, replacement=True)
        loss = (out[drawn] * torch.bernoulli(torch.full((5, 4), 0.5))).sum(1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return p.twin(step)


def _steps_of_steps() -> Twin:
    """A loop over updates in one step."""
    p = Parts()
    plain = p.step()

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([plain(rows, labels).detach() for _ in range(3)])

    return p.twin(step)


def _vector() -> Twin:
    """Parameters flattened, moved and put back."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        F.cross_entropy(net(rows), labels).backward()
        opt.step()
        vector = nn.utils.parameters_to_vector(net.parameters()).detach()
        with torch.no_grad():
            start = 0
            for q in net.parameters():
                q.copy_(0.99 * vector[start : start + q.numel()].view_as(q))
                start += q.numel()
        return vector.norm()

    return p.twin(step)


def _assertion() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        assert not torch.isnan(loss), "the loss is not a number"
        loss.backward()
        opt.step()
        return loss

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows * torch.nan if number == 7 else rows, labels))

    return p.twin(step, call=call)


def _constants() -> Twin:
    """Tensors made of numbers in the step."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        weight = torch.tensor([1.0, 0.5, 2.0, 1.0])
        loss = F.cross_entropy(net(rows), labels, weight=weight)
        scale = torch.tensor(loss.item() + 1.0)
        (loss / scale).backward()
        opt.step()
        return loss

    return p.twin(step)


WAYS = (
    Case("an optimizer of the user's", _own_optimizer, captures=None, eager_calls=None),
    Case("a closure that is called once", _closure),
    Case("sharpness-aware", _sharpness),
    Case("gradients through an inner step", _meta),
    Case("gradients of each sample", _per_sample, captures=2),
    Case("two losses, one graph", _two_losses),
    Case("evaluation in between", _evaluates_in_between),
    Case("policy gradient", _policy),
    Case("batches mixed", _mixed_up),
    Case("samples", _sampled),
    Case("a loop of updates", _steps_of_steps),
    Case("parameters as a vector", _vector),
    Case("an assertion", _assertion, captures=None, eager_calls=None, fails=True),
    Case("tensors of numbers", _constants),
)
