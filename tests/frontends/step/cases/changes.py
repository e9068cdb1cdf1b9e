"""What a loop may change between two calls of a step: each must be seen, as eager sees it."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from tests.frontends.step.agreement import Case
from tests.frontends.step.twins import Call, Step, Twin

AT = 6  # the turn before which most changes are made
_BACK = 11  # the turn before which some are taken back

kl_weight = 0.1  # read by `_global_step`, in a copy of this module's globals


class Net(nn.Module):
    """Two layers around batch norm and dropout; its temperature is a plain number, which forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.norm = nn.BatchNorm1d(10)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(10, 4)
        self.temperature = 1.5

    def forward(self, rows: Tensor) -> Tensor:
        """f32[batch, 6] to f32[batch, 4]."""
        return self.second(self.drop(torch.relu(self.norm(self.first(rows))))) / self.temperature


class Parts:
    """A net, its optimizer, and what a case puts beside them."""

    def __init__(self, make: Callable[..., optim.Optimizer] = optim.AdamW, **options: Any) -> None:
        self.net = Net()
        self.opt = make(self.net.parameters(), **({"lr": 0.02} | options))
        generator = torch.Generator().manual_seed(3)
        self._rows = torch.randn(3, 7, 6, generator=generator)
        self._labels = torch.randint(4, (3, 7), generator=generator)

    def batch(self, number: int, rows: int = 7) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a turn."""
        return self._rows[number % 3, :rows].clone(), self._labels[number % 3, :rows].clone()

    def step(self) -> Step:
        """The plain step."""
        net, opt = self.net, self.opt

        def step(rows: Tensor, labels: Tensor) -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(net(rows), labels)
            loss.backward()
            opt.step()
            return loss

        return step

    def twin(self, step: Step | None = None, /, **more: Any) -> Twin:
        """The side, with the plain step unless another is given."""
        more.setdefault("call", lambda number: Call(self.batch(number)))
        return Twin(steps={"step": step or self.step()}, models={"net": self.net}, optimizers={"opt": self.opt}, **more)

    def changed(self, change: Callable[[], Any], step: Step | None = None, /, **more: Any) -> Twin:
        """The side, with one change before turn AT."""
        return self.twin(step, before=lambda number: change() if number == AT else None, **more)


# --- modes and gradients ----------------------------------------------------------------------------------------------


def _evaluates(net: nn.Module, number: int) -> None:
    if number == AT:
        net.eval()
    if number == _BACK:
        net.train()


def _eval_and_train() -> Twin:
    p = Parts()
    return p.twin(before=partial(_evaluates, p.net))


def _eval_of_a_part() -> Twin:
    p = Parts()
    return p.twin(before=partial(_evaluates, p.net.norm))


def _unfreezing() -> Twin:
    p = Parts()
    p.net.first.requires_grad_(False)
    return p.changed(lambda: p.net.first.requires_grad_(True))


def _freezing() -> Twin:
    p = Parts()
    return p.changed(lambda: p.net.first.weight.requires_grad_(False))


def _autocast_around() -> Twin:
    p = Parts()

    def around(number: int) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=torch.bfloat16) if number in (AT, AT + 1, _BACK) else nullcontext()

    return p.twin(around=around)


def _no_grad_around() -> Twin:
    """Backward fails in this call, and the next one goes on."""
    p = Parts()
    return p.twin(around=lambda number: torch.no_grad() if number == AT else nullcontext())


# --- numbers that the step reads --------------------------------------------------------------------------------------


def _global_step(net: nn.Module, opt: optim.Optimizer, rows: Tensor, labels: Tensor) -> Tensor:
    opt.zero_grad()
    out = net(rows)
    loss = F.cross_entropy(out, labels) + kl_weight * out.square().mean()
    loss.backward()
    opt.step()
    return loss


def _global_number() -> Twin:
    """A global variable that is raised each turn, as the weight of a divergence often is."""
    p = Parts()
    own = {**globals(), "net": p.net, "opt": p.opt}
    inner = types.FunctionType(_global_step.__code__, own)

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return inner(p.net, p.opt, rows, labels)

    def before(number: int) -> None:
        own["kl_weight"] = 0.05 * number

    return p.twin(step, before=before)


def _global_number_once() -> Twin:
    p = Parts()
    own = {**globals()}
    inner = types.FunctionType(_global_step.__code__, own)
    return p.changed(lambda: own.update(kl_weight=0.7), partial(inner, p.net, p.opt))


def _closure_variable() -> Twin:
    p = Parts()
    net, opt, weight = p.net, p.opt, 0.1

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels) * weight
        loss.backward()
        opt.step()
        return loss

    def change() -> None:
        nonlocal weight
        weight = 0.6

    return p.changed(change, step)


def _integer_variable() -> Twin:
    """How often a layer is applied."""
    p = Parts()
    net, opt, times = p.net, p.opt, [1]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        for _ in range(times[0]):
            rows = torch.tanh(rows)
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        return loss

    return p.changed(lambda: times.__setitem__(0, 3), step)


def _default_argument() -> Twin:
    p = Parts()
    settings = {"smoothing": 0.0, "scale": 1.0}

    def step(
        rows: Tensor, labels: Tensor, net: Any = p.net, opt: Any = p.opt, settings: dict[str, float] = settings
    ) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels, label_smoothing=settings["smoothing"]) * settings["scale"]
        loss.backward()
        opt.step()
        return loss

    return p.changed(lambda: settings.update(smoothing=0.1, scale=0.5), step)


def _module_number() -> Twin:
    p = Parts()

    def before(number: int) -> None:
        p.net.temperature = 1.5 - 0.05 * number

    return p.twin(before=before)


def _dropout_chance() -> Twin:
    p = Parts()
    return p.changed(lambda: setattr(p.net.drop, "p", 0.6))


def _norm_momentum() -> Twin:
    p = Parts()
    return p.changed(lambda: setattr(p.net.norm, "momentum", 0.4))


def _tensor_replaced() -> Twin:
    """A plain tensor in a list: another object, then other contents of the same one."""
    p = Parts()
    net, opt, weights = p.net, p.opt, [torch.ones(4)]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels, weight=weights[0])
        loss.backward()
        opt.step()
        return loss

    def before(number: int) -> None:
        if number == AT:
            weights[0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        if number == _BACK:
            weights[0].mul_(0.5)

    return p.twin(step, before=before, attributes=lambda: {"weights": weights})


def _counter() -> Twin:
    """A number that the step itself raises, and branches on."""
    p = Parts()
    net, opt, count = p.net, p.opt, {"n": 0, "skipped": 0}

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        count["n"] += 1
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        if count["n"] % 3 == 0:
            count["skipped"] += 1
            return loss
        loss.backward()
        opt.step()
        return loss

    return p.twin(step, attributes=lambda: count)


def _counter_set_back() -> Twin:
    p = Parts()
    net, opt, count = p.net, p.opt, [0]

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        count[0] += 1
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels) / count[0]
        loss.backward()
        opt.step()
        return loss, count[0]

    return p.changed(lambda: count.__setitem__(0, 0), step, attributes=lambda: {"count": count})


# --- what the step calls ----------------------------------------------------------------------------------------------


def _new_shape() -> Twin:
    p = Parts()
    return p.twin(call=lambda number: Call(p.batch(number, 7 if number % 5 else 4)))


def _forward_hook() -> Twin:
    p = Parts()
    return p.changed(lambda: p.net.first.register_forward_hook(lambda _module, _given, out: out * 2))


def _hook_removed() -> Twin:
    p = Parts()
    handle = p.net.first.register_forward_hook(lambda _module, _given, out: out * 2)
    return p.changed(handle.remove)


def _gradient_hook() -> Twin:
    p = Parts()
    return p.changed(lambda: p.net.first.weight.register_hook(lambda grad: grad * 0.1))


def _optimizer_hook() -> Twin:
    p = Parts()
    seen: list[int] = []

    def change() -> None:
        p.opt.register_step_post_hook(lambda _opt, _given, _keywords: seen.append(1))

    return p.changed(change, attributes=lambda: {"seen": seen})


def _layer_replaced() -> Twin:
    p = Parts()

    def change() -> None:
        generator = torch.Generator().manual_seed(5)
        layer = nn.Linear(6, 10)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(10, 6, generator=generator) * 0.3)
            layer.bias.zero_()
        p.net.first = layer  # the optimizer still holds the old one

    return p.changed(change)


def _function_replaced() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt
    loss_of: Callable[..., Tensor] = F.cross_entropy

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = loss_of(net(rows), labels)
        loss.backward()
        opt.step()
        return loss

    def change() -> None:
        nonlocal loss_of
        loss_of = F.multi_margin_loss

    return p.changed(change, step)


CHANGES = (
    Case("eval and train", _eval_and_train, captures=None, eager_calls=None, at_most=3),
    Case("eval of a part", _eval_of_a_part, captures=None, eager_calls=None, at_most=3),
    Case("unfreezing", _unfreezing, captures=None, eager_calls=None),
    Case("freezing", _freezing, captures=None, eager_calls=None),
    Case("autocast around the call", _autocast_around, captures=None, eager_calls=None, at_most=3),
    Case("no gradients around the call", _no_grad_around, captures=None, eager_calls=None, fails=True),
    Case("a global number each turn", _global_number, captures=None, eager_calls=None),
    Case("a global number once", _global_number_once, captures=None, eager_calls=None, at_most=3),
    Case("a closure variable", _closure_variable, captures=None, eager_calls=None, at_most=3),
    Case("an integer in a list", _integer_variable, captures=None, eager_calls=None, at_most=3),
    Case("a default argument's object", _default_argument, captures=None, eager_calls=None, at_most=3),
    Case("a module's number each turn", _module_number, captures=None, eager_calls=None),
    Case("dropout's chance", _dropout_chance, captures=None, eager_calls=None, at_most=3),
    Case("batch norm's momentum", _norm_momentum, captures=None, eager_calls=None, at_most=3),
    Case("a tensor in a list", _tensor_replaced, captures=None, eager_calls=None),
    Case("a counter the step branches on", _counter, captures=None, eager_calls=None),
    Case("a counter set back", _counter_set_back, captures=None, eager_calls=None),
    Case("a new batch shape", _new_shape, captures=None, eager_calls=None),
    Case("a forward hook", _forward_hook, captures=None, eager_calls=None, at_most=3),
    Case("a forward hook taken away", _hook_removed, captures=None, eager_calls=None, at_most=3),
    Case("a hook of a parameter", _gradient_hook, captures=None, eager_calls=None, at_most=3),
    Case("a hook of the optimizer", _optimizer_hook, captures=None, eager_calls=None),
    Case("a layer replaced", _layer_replaced, captures=None, eager_calls=None),
    Case("a function replaced", _function_replaced, captures=None, eager_calls=None, at_most=3),
)


def scheduled(parts: Parts) -> tuple[Any, Step]:
    """A scheduler, and a step that calls it."""
    scheduler = lr_scheduler.StepLR(parts.opt, 4, 0.7)
    inner = parts.step()

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        loss = inner(rows, labels)
        scheduler.step()
        return loss

    return scheduler, step
