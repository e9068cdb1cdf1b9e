"""Each refusal of a compiled step names the user's line, and what a user would write for the object."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import DovetailError

_HERE = sys.modules[__name__]
Step = Callable[..., Any]
LAST: Any = None
SEEN: dict[Any, Any] = {}
HISTORY: list[Any] = []


class Training:
    """A net with an optimizer; what a step may keep."""

    def __init__(self, make: Callable[..., Any] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 1)
        self.opt = make(self.net.parameters(), lr=0.1)
        self.last: Any = None
        self.losses: list[Any] = []
        self.kinds: set[Any] = set()
        self.frozen = torch.ones(3)

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.opt.zero_grad()
        loss: torch.Tensor = self.net(x).square().sum()
        loss.backward()
        self.opt.step()
        return loss.detach()


def attribute(t: Training) -> Step:
    t.last = torch.zeros(())

    def step(x: torch.Tensor) -> None:
        t.last = Box(t.train(x))  # here

    return step


class Box:
    """An object of which a program makes no other."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __del__(self) -> None:
        """Code that runs when an object goes: no program makes another one."""


class Keeping(Training):
    def __call__(self, x: torch.Tensor) -> None:
        loss = self.train(x)
        self.last = Box(loss * 2)  # here


def attribute_of_self(t: Training) -> Step:
    made = Keeping()
    made.last = torch.zeros(())
    return made


def appended(t: Training) -> Step:
    def step(x: torch.Tensor) -> None:
        loss = t.train(x)
        t.losses.append(Box(loss))  # here

    return step


def appended_under_another_name(t: Training) -> Step:
    def step(x: torch.Tensor) -> None:
        losses = t.losses
        loss = t.train(x)
        losses += [Box(loss)]  # here

    return step


def global_variable(t: Training) -> Step:
    def step(x: torch.Tensor) -> None:
        global LAST  # noqa: PLW0603
        LAST = Box(t.train(x))  # here

    _HERE.LAST = torch.zeros(())  # type: ignore[attr-defined]
    return step


def enclosing_variable(t: Training) -> Step:
    last = torch.zeros(())

    def step(x: torch.Tensor) -> None:
        nonlocal last
        last = Box(t.train(x))  # here

    return step


def global_list(t: Training) -> Step:
    def step(x: torch.Tensor) -> None:
        HISTORY.append(Box(t.train(x)))  # here

    return step


def entry(t: Training) -> Step:
    SEEN["loss"] = torch.zeros(())

    def step(x: torch.Tensor) -> None:
        loss = t.train(x)
        if loss.dim() == 0:
            SEEN["loss"] = Box(loss + 1)  # here

    return step


def element(t: Training) -> Step:
    def step(x: torch.Tensor) -> None:
        t.train(x)
        t.kinds.add(object())  # here

    return step


def state_of_optimizer(t: Training) -> Step:
    t.opt = torch.optim.SGD(t.net.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> None:
        t.train(x)
        t.opt.state[t.net.weight]["note"] = Box(t.net.weight)  # here

    return step


def python_random(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        return t.train(x * random.uniform(0, x.sum().item()))  # here

    return step


def numpy_random(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        return t.train(x * np.random.normal(x.sum().item()))  # here

    return step


def numpy_generator(t: Training) -> Step:
    numbers = np.random.default_rng(0)

    def step(x: torch.Tensor) -> Any:
        return t.train(x * numbers.normal(x.sum().item()))  # here

    return step


def iterator(t: Training) -> Step:
    batches = iter([torch.ones(2, 3)] * 9)

    def step(x: torch.Tensor) -> Any:
        return t.train(x + next(batches))  # here

    return step


def learning_rate_of_scheduler(t: Training) -> Step:
    sched = torch.optim.lr_scheduler.StepLR(t.opt, 2)

    def step(x: torch.Tensor) -> Any:
        loss = t.train(x)
        sched.step()
        return loss * sched.last_epoch  # here

    return step


def returned_view(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        t.train(x)
        return t.net.weight.view(-1)  # here

    return step


def returned_without_graph(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        t.train(x)
        return t.net.weight.detach()  # here

    return step


def unowned(t: Training) -> Step:
    dataset = torch.utils.data.TensorDataset(torch.ones(3))

    def step(x: torch.Tensor) -> Any:
        loss = t.train(x)
        dataset.tensors[0].add_(loss)  # here

    return step


def older_graph(t: Training) -> Step:
    scale = torch.ones(3, requires_grad=True) * 2

    def step(x: torch.Tensor) -> Any:
        return t.train(x * scale)  # here

    return step

    return step


def moved(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        t.net.double()  # here
        t.train(x.double())
        t.net.float()

    return step


def as_array(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        loss = t.train(x)
        return loss.numpy()  # here

    return step


def graph_written(t: Training) -> Step:
    weight = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        t.frozen.add_(t.net(x).sum() * weight)  # here

    return step


def reshaped(t: Training) -> Step:
    def step(x: torch.Tensor) -> Any:
        t.train(x)
        t.frozen.unsqueeze_(0)  # here

    return step


CASES: tuple[tuple[Callable[[Training], Step], str], ...] = (
    (attribute, "changes t.last"),
    (attribute_of_self, "changes self.last"),
    (appended, "puts an object that it makes into a container"),
    (appended_under_another_name, "puts an object that it makes into a container"),
    (global_variable, "LAST"),
    (enclosing_variable, "changes variable last"),
    (global_list, "puts an object that it makes into a container"),
    (entry, "puts an object that it makes into a container"),
    (element, "t.kinds"),
    (state_of_optimizer, "t.opt.state[t.net.weight]['note']"),
    (python_random, "with arguments that it computes"),
    (numpy_random, "with arguments that it computes"),
    (numpy_generator, "with arguments that it computes"),
    (iterator, "reads from a list_iterator"),
    (learning_rate_of_scheduler, "reads 'last_epoch' of a StepLR"),
    (returned_view, "belongs to t.net.weight"),
    (returned_without_graph, "belongs to t.net.weight"),
    (unowned, "writes a tensor of shape (3,)"),
    (older_graph, "reaches variable scale, which is part of a graph from before"),
    (moved, "moves a Linear to another dtype or device"),
    (as_array, "turns a tensor into Python objects"),
    (graph_written, "a leaf Variable that requires grad"),
    (reshaped, "changes the shape or strides of t.frozen"),
)


@pytest.mark.parametrize(("make", "text"), CASES, ids=[make.__name__ for make, _ in CASES])
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
def test_the_line_is_named(make: Callable[[Training], Step], text: str) -> None:
    step = dovetail.compile_step(make(Training()))
    with pytest.raises(DovetailError) as caught:
        list(map(step, [torch.ones(2, 3)] * 6))
    message = str(caught.value)
    assert text in message
    assert f"{__file__}:{_marked(make)} in " in message


def _marked(make: Callable[..., Any]) -> int:
    start = (Keeping.__call__ if make is attribute_of_self else make).__code__.co_firstlineno
    with open(__file__, encoding="utf-8") as source:
        return next(n for n, line in enumerate(source, 1) if n >= start and line.rstrip().endswith("# here"))
