"""What training loops do besides: averages of weights, mixed images, schedules, penalties, frozen layers."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

DOORS = ("step", "backend", "compile")


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 4))


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 6), torch.randint(0, 4, (5,))


@program(*DOORS)
def average_of_weights(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    @torch.no_grad()
    def update(decay: float) -> None:
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.mul_(decay).add_(new, alpha=1 - decay)
        for kept, new in zip(average.buffers(), model.buffers(), strict=True):
            kept.copy_(new)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        update(0.99)
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "average": average, "optimizer": optimizer})


@program(*DOORS, captures=4)
def average_that_warms_up(wrap: Wrap) -> Made:
    class Average:
        def __init__(self, model: nn.Module) -> None:
            self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
            self.updates = 0

        @torch.no_grad()
        def update(self, model: nn.Module) -> None:
            self.updates += 1
            decay = min(0.999, (1 + self.updates) / (10 + self.updates))
            for name, p in model.named_parameters():
                self.shadow[name].lerp_(p, 1 - decay)

    model = _net()
    average = Average(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "average": average, "optimizer": optimizer})


@program(*DOORS)
def averaged_model_of_torch(wrap: Wrap) -> Made:
    model = _net()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "average": average, "optimizer": optimizer})


@program(*DOORS)
def mixed_images(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        share = torch.rand(())
        order = torch.randperm(x.size(0))
        mixed = share * x + (1 - share) * x[order]
        optimizer.zero_grad()
        out = net(mixed)
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(4, 1, 8, 8), torch.randint(0, 4, (4,))))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


@program(*DOORS)
def erased_and_flipped_images(wrap: Wrap) -> Made:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(144, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            flip = torch.rand(x.shape[0], 1, 1, 1) < 0.5
            x = torch.where(flip, x.flip(-1), x)
            top, left = torch.randint(0, 5, (2, x.shape[0], 1, 1, 1))
            rows, columns = torch.arange(8).view(1, 1, 8, 1), torch.arange(8).view(1, 1, 1, 8)
            hole = (rows >= top) & (rows < top + 3) & (columns >= left) & (columns < left + 3)
            x = x.masked_fill(hole, 0.0) + 0.01 * torch.randn_like(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(4, 1, 8, 8), torch.randint(0, 4, (4,))))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Smoothed(nn.Module):
    """Cross entropy against targets that leave a little to every class."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        logs = F.log_softmax(logits, dim=-1)
        right = -logs.gather(dim=-1, index=target.unsqueeze(1)).squeeze(1)
        return ((1 - self.smoothing) * right - self.smoothing * logs.mean(dim=-1)).mean()


@program(*DOORS)
def smoothed_with_one_cycle(wrap: Wrap) -> Made:
    model, criterion = _net(), Smoothed(0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=12)
    net, measured = wrap(model), wrap(criterion)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
        optimizer.zero_grad()
        loss = measured(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach(), scheduler.get_last_lr()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "scheduler": scheduler})


@program(*DOORS)
def chained_schedules(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, amsgrad=True)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], milestones=[2])
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    state = {"model": model, "optimizer": optimizer, "warm": warm, "fall": fall}
    return Made(step, some(_batch), state)


@program(*DOORS)
def rate_that_falls_on_plateaus(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
        return loss.item()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "scheduler": scheduler})


@program(*DOORS, captures=4)
def accumulate_over_calls(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)
    progress = {"number": 0}

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y) / 2
        loss.backward()
        progress["number"] += 1
        if progress["number"] % 2 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "progress": progress})


@program(*DOORS)
def two_passes_that_must_agree(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        a, b = net(torch.cat([x, x])).chunk(2)
        la, lb = F.log_softmax(a, -1), F.log_softmax(b, -1)
        apart = F.kl_div(la, lb, log_target=True, reduction="batchmean")
        apart = apart + F.kl_div(lb, la, log_target=True, reduction="batchmean")
        loss = F.nll_loss(la, y) + F.nll_loss(lb, y) + 0.5 * apart
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer})


@program(*DOORS)
def rates_by_depth_and_a_frozen_layer(wrap: Wrap) -> Made:
    model = _net()
    model[0].requires_grad_(False)
    layers = [layer for layer in model if any(p.requires_grad for p in layer.parameters())]
    groups = [{"params": list(it.parameters()), "lr": 1e-2 * 0.7**depth} for depth, it in enumerate(reversed(layers))]
    optimizer = torch.optim.Adam(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / 10)))
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.multi_margin_loss(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "scheduler": scheduler})


@program(*DOORS)
def noise_on_gradients(wrap: Wrap) -> Made:
    model, noise = _net(), torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        norms = []
        for p in model.parameters():
            assert p.grad is not None
            norms.append(p.grad.norm())
            p.grad.add_(torch.randn(p.shape, generator=noise), alpha=0.01)
        optimizer.step()
        return loss.detach(), torch.stack(norms)

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer, "noise": noise})


@program(*DOORS)
def penalties_on_weights_and_activations(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.ASGD(model.parameters(), 0.05)
    net = wrap(model[:2])

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        inner = net(x)
        logits = model[2:](inner)
        l1 = sum(p.abs().sum() for p in model.parameters())
        loss = F.cross_entropy(logits, y) + 1e-3 * l1 + 1e-2 * inner.pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), logits.argmax(-1).eq(y).float().mean()

    return Made(step, some(_batch), {"model": model, "optimizer": optimizer})


@program(*DOORS)
def loss_weights_that_are_learned(wrap: Wrap) -> Made:
    body, heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 4)])
    balance = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adamax([*body.parameters(), *heads.parameters(), balance], 1e-2)
    net = wrap(body)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        inner = torch.tanh(net(x))
        losses = torch.stack([F.huber_loss(heads[0](inner)[:, 0], x.sum(1)), F.cross_entropy(heads[1](inner), y)])
        loss = (torch.exp(-balance) * losses + balance).sum()
        loss.backward()
        optimizer.step()
        return losses.detach()

    return Made(step, some(_batch), {"body": body, "heads": heads, "balance": balance, "optimizer": optimizer})


@program("step", "compile", captures=3)
def skip_steps_that_are_not_finite(wrap: Wrap) -> Made:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        return norm

    batches = some(_batch, 5)
    batches[3][0][0, 0] = float("inf")
    return Made(step, batches, {"model": model, "optimizer": optimizer})
