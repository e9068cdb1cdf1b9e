"""State that the loop replaces, moves or adds to between two calls of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import AT, Parts, scheduled
from tests.frontends.step.twins import Call, Twin


def _rolled_back(
    kept: Callable[[], Any], load: Callable[[Any], Any], p: Parts, step: Any = None, /, **more: Any
) -> Twin:
    """What is kept before turn 3 is loaded before turn AT, and once more later on."""
    held: list[Any] = []

    def before(number: int) -> None:
        if number == 3:
            held.append(copy.deepcopy(kept()))
        if number in (AT, AT + 4):
            load(copy.deepcopy(held[0]))

    return p.twin(step, before=before, **more)


def _model() -> Twin:
    p = Parts()
    return _rolled_back(p.net.state_dict, p.net.load_state_dict, p)


def _model_assigned() -> Twin:
    """The model gets new parameters, and the optimizer keeps the old ones: eager trains nothing from then on."""
    p = Parts()
    return _rolled_back(p.net.state_dict, lambda state: p.net.load_state_dict(state, assign=True), p)


def _model_assigned_first() -> Twin:
    """New parameters, and a new optimizer's groups made of them."""
    p = Parts()

    def load(state: Any) -> None:
        p.net.load_state_dict(state, assign=True)
        p.opt.state.clear()
        p.opt.param_groups[0]["params"][:] = list(p.net.parameters())

    return _rolled_back(p.net.state_dict, load, p)


def _optimizer() -> Twin:
    p = Parts()
    return _rolled_back(p.opt.state_dict, p.opt.load_state_dict, p)


def _optimizer_of_momentum() -> Twin:
    p = Parts(optim.SGD, momentum=0.9)
    return _rolled_back(p.opt.state_dict, p.opt.load_state_dict, p)


def _state_cleared() -> Twin:
    p = Parts()
    return p.changed(p.opt.state.clear)


def _scheduler() -> Twin:
    p = Parts()
    scheduler, step = scheduled(p)
    return _rolled_back(scheduler.state_dict, scheduler.load_state_dict, p, step, schedulers={"it": scheduler})


def _scheduler_rewound() -> Twin:
    p = Parts()
    scheduler, step = scheduled(p)

    def change() -> None:
        scheduler.last_epoch = 0

    return p.changed(change, step, schedulers={"it": scheduler})


def _scaler() -> Twin:
    p = Parts(optim.SGD)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=3)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return _rolled_back(scaler.state_dict, scaler.load_state_dict, p, step, scalers={"it": scaler})


def _lr_by_hand() -> Twin:
    p = Parts()

    def before(number: int) -> None:
        for group in p.opt.param_groups:
            group["lr"] = 0.02 / (1 + number)

    return p.twin(before=before)


def _tensor_lr_by_hand() -> Twin:
    p = Parts(lr=torch.tensor(0.02), foreach=False)

    def before(number: int) -> None:
        if number % 2:
            p.opt.param_groups[0]["lr"].mul_(0.9)
        elif number:
            p.opt.param_groups[0]["lr"] = torch.tensor(0.01)

    return p.twin(before=before)


def _lr_to_tensor() -> Twin:
    p = Parts(lr=0.02, foreach=False)
    return p.changed(lambda: p.opt.param_groups[0].update(lr=torch.tensor(0.03)))


def _weight_decay() -> Twin:
    p = Parts(weight_decay=0.0)

    def before(number: int) -> None:
        if number == AT:
            p.opt.param_groups[0]["weight_decay"] = 0.2
        if number == AT + 4:
            p.opt.param_groups[0]["weight_decay"] = 0

    return p.twin(before=before)


def _betas() -> Twin:
    p = Parts()
    return p.changed(lambda: p.opt.param_groups[0].update(betas=(0.7, 0.8), eps=1e-3))


def _momentum_begins() -> Twin:
    p = Parts(optim.SGD)
    return p.changed(lambda: p.opt.param_groups[0].update(momentum=0.9))


def _amsgrad_begins() -> Twin:
    """Eager fails for want of state, and so must a compiled step."""
    p = Parts()
    return p.changed(lambda: p.opt.param_groups[0].update(amsgrad=True))


def _group_added() -> Twin:
    p = Parts()
    first, *rest = p.net.parameters()
    p.opt = optim.AdamW(rest, lr=0.02)
    return p.changed(lambda: p.opt.add_param_group({"params": [first], "lr": 0.1}), p.step())


def _group_added_with_tensor() -> Twin:
    """A temperature that the loss has used all the time begins to be trained."""
    p = Parts()
    net, opt, extra = p.net, p.opt, nn.Parameter(torch.tensor(1.0))

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        extra.grad = None
        loss = F.cross_entropy(net(rows) * extra, labels)
        loss.backward()
        opt.step()
        return loss

    return p.changed(lambda: opt.add_param_group({"params": [extra]}), step, attributes=lambda: {"extra": extra})


def _parameters_written() -> Twin:
    p = Parts()

    def change() -> None:
        with torch.no_grad():
            for parameter in p.net.parameters():
                parameter.mul_(0.5)

    return p.changed(change)


def _data_replaced() -> Twin:
    """Parameters get other memory, one of them another layout."""
    p = Parts()

    def change() -> None:
        p.net.second.bias.data = p.net.second.bias.data.clone() * 2
        p.net.first.weight.data = p.net.first.weight.data.t().contiguous().t()

    return p.changed(change)


def _gradients_left() -> Twin:
    """The loop leaves gradients behind, and the step does not drop them: they are added to."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    def change() -> None:
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)

    return p.changed(change, step)


def _gradients_collected() -> Twin:
    """Nothing drops gradients, ever."""
    p = Parts(optim.SGD)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(net(rows), labels)
        loss.backward()
        opt.step()
        return loss

    return p.twin(step)


def _seed_set() -> Twin:
    p = Parts()
    return p.changed(lambda: torch.manual_seed(77))


def _not_finite() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        if torch.isfinite(loss):
            loss.backward()
            opt.step()
        return loss

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows * torch.nan if number in (AT, AT + 5) else rows, labels))

    return p.twin(step, call=call)


def _error_of_the_user() -> Twin:
    """The step itself raises for a loss that is not finite; the loop goes on."""
    p = Parts(optim.SGD)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> float:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        value = loss.item()
        if value != value:
            raise ValueError("the loss is not a number")
        loss.backward()
        opt.step()
        return value

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows * torch.nan if number in (AT, AT + 5) else rows, labels))

    return p.twin(step, call=call)


RELOADS = (
    Case("load a model", _model, captures=1),
    Case("load a model, assigned", _model_assigned, captures=None, eager_calls=None),
    Case("load a model, assigned, and its optimizer follows", _model_assigned_first, captures=None, eager_calls=None),
    Case("load an optimizer", _optimizer, captures=None, eager_calls=None),
    Case("load an optimizer with momentum", _optimizer_of_momentum, captures=None, eager_calls=None),
    Case("state of the optimizer cleared", _state_cleared, captures=None, eager_calls=None),
    Case("load a scheduler", _scheduler, captures=1),
    Case("a scheduler rewound", _scheduler_rewound, captures=1),
    Case("load a scaler", _scaler, captures=None, eager_calls=None),
    Case("lr moved by hand", _lr_by_hand, captures=1),
    Case("tensor lr moved by hand", _tensor_lr_by_hand, captures=None, eager_calls=None),
    Case("lr becomes a tensor", _lr_to_tensor, captures=None, eager_calls=None, at_most=3),
    Case("weight decay", _weight_decay, captures=None, eager_calls=None),
    Case("betas and eps", _betas, captures=1),
    Case("momentum begins", _momentum_begins, captures=None, eager_calls=None),
    Case("amsgrad begins", _amsgrad_begins, captures=None, eager_calls=None, at_most=30, fails=True),
    Case("a group added", _group_added, captures=None, eager_calls=None),
    Case("a group with a new parameter added", _group_added_with_tensor, captures=None, eager_calls=None),
    Case("parameters written", _parameters_written, captures=1),
    Case("other memory behind parameters", _data_replaced, captures=None, eager_calls=None),
    Case("gradients left behind", _gradients_left, captures=None, eager_calls=None),
    Case("gradients never dropped", _gradients_collected, captures=None, eager_calls=None),
    Case("the generator seeded", _seed_set, captures=1),
    Case("a loss that is not finite", _not_finite, captures=None, eager_calls=None),
    Case("an error that the step raises", _error_of_the_user, captures=None, eager_calls=None, fails=True),
)
