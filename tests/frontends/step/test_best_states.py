"""A step keeps the best weights so far, or a copy of the model: each run leaves what eager mode leaves."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class Training:
    """A net, its optimizer, and what the step keeps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.best: Any = None
        self.before: Any = None
        self.loss = float("inf")

    def train(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value), value.requires_grad, value.tolist(), _shown(value.grad) if value.is_leaf else None
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return type(value), factory, [(k, _shown(x)) for k, x in value.items()], _shown(getattr(value, "__dict__", 0))
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), list(map(_shown, value))
    return (type(value), _shown(vars(value))) if isinstance(value, Training | nn.Module) else repr(value)


def _states(t: Training, _: Tensor) -> None:
    t.best = copy.deepcopy(t.net.state_dict())


def _states_of_both(t: Training, _: Tensor) -> None:
    t.best = copy.deepcopy(t.net.state_dict()), copy.deepcopy(t.optimizer.state_dict())


def _states_in_a_row(t: Training, _: Tensor) -> None:
    t.before, t.best = t.best, copy.deepcopy(t.net.state_dict())


def _early_stopping(t: Training, loss: Tensor) -> None:
    if loss.item() < t.loss:
        t.loss, t.best = loss.item(), copy.deepcopy(t.net.state_dict())
    else:
        t.net.load_state_dict(t.best)


def _ordered(t: Training, _: Tensor) -> None:
    t.best = OrderedDict((name, w.detach().clone()) for name, w in t.net.named_parameters())
    t.best.move_to_end("0.bias")
    t.before = t.best


def _model(t: Training, _: Tensor) -> None:
    t.best = copy.deepcopy(t.net)


def _model_that_is_used(t: Training, loss: Tensor) -> None:
    if t.best is not None:
        with torch.no_grad():
            loss += t.best(torch.ones(2, 3)).sum()
    t.best = copy.deepcopy(t.net).eval()


def _average(t: Training, _: Tensor) -> None:
    if t.best is None:
        t.best = copy.deepcopy(t.net).requires_grad_(False)
    for mean, weight in zip(t.best.parameters(), t.net.parameters(), strict=True):
        mean.data.lerp_(weight.data, 0.1)


def _parameters(t: Training, _: Tensor) -> None:
    t.best = nn.ParameterList(w.detach().clone() for w in t.net.parameters())


def _new_layer(t: Training, _: Tensor) -> None:
    t.best = nn.Linear(3, 2)


def _others(t: Training, loss: Tensor) -> None:
    t.best = defaultdict(list, a=[loss.detach()]), Counter(a=2), deque([loss.detach()], maxlen=3), {"a"}


MAKERS: tuple[Callable[[Training, Tensor], None], ...] = (
    _states,
    _states_of_both,
    _states_in_a_row,
    _early_stopping,
    _ordered,
    _model,
    _model_that_is_used,
    _average,
    _parameters,
    _new_layer,
    _others,
)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("keep", MAKERS, ids=lambda keep: keep.__name__.lstrip("_"))
def test_what_is_kept_of_a_model(keep: Callable[[Training, Tensor], None]) -> None:
    found: list[list[Any]] = []
    for wrap in (lambda step: step, dovetail.compile_step):
        t = Training()

        def step(x: Tensor, t: Training = t) -> Tensor:
            loss = t.train(x).detach()
            keep(t, loss)
            return loss

        run: Any = wrap(step)  # type: ignore[no-untyped-call]
        found.append([])
        for number in range(9):
            loss = run(torch.arange(12.0).view(4, 3) * (1 + number % 3) / 10)
            found[-1].append((loss.item(), _shown(t), t.before is t.best, torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert run.stats.eager_calls <= 3
    assert run.stats.captures <= 5
