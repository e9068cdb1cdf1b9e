"""Copies and pickles of compiled functions and steps: what was compiled is, and compiles anew; nothing is shared."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


@dovetail.compile
def doubled(x: Tensor) -> Tensor:
    return x.sin() * 2


@dovetail.compile_step
def halved(x: Tensor) -> Tensor:
    return x.cos() / 2


class Trainer:
    """Has a step of its own, and one that its class has."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.step: Callable[[Tensor], Tensor] = dovetail.compile_step(self.plain, on_unsupported="eager")

    def plain(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    of_class = dovetail.compile_step(plain)


def _pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


def _saved(given: Any) -> Any:
    file = io.BytesIO()
    torch.save(given, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = (copy.deepcopy, _pickled, _saved)


@pytest.mark.parametrize("copied", COPIES)
def test_steps_of_an_object(copied: Callable[[Any], Any]) -> None:
    """The copy's step trains the copy; both go on from where the first one was."""
    x, expected, trainer = torch.ones(4, 3), Trainer(), Trainer()
    for _ in range(2):
        trainer.step(x), expected.plain(x)
    twin = copied(trainer)
    assert isinstance(twin.step, dovetail.CompiledStep)
    assert twin.step.stats.captures == 0
    assert torch.equal(twin.step(x), expected.plain(x))
    assert torch.equal(twin.model.weight, expected.model.weight)
    trainer.of_class(x)
    assert torch.equal(trainer.model.weight, twin.model.weight)


@pytest.mark.parametrize("copied", [copy.copy, *COPIES])
def test_functions_with_a_name(copied: Callable[[Any], Any]) -> None:
    """A decorator's result has the function's name: it is pickled, and found again, by that."""
    x = torch.ones(3)
    for compiled, eager in ((doubled, lambda x: x.sin() * 2), (halved, lambda x: x.cos() / 2)):
        assert torch.equal(copied(compiled)(x), eager(x))
    assert _pickled(doubled) is doubled
    assert _pickled(halved) is halved


@pytest.mark.parametrize("copied", [copy.copy, *COPIES])
def test_modules(copied: Callable[[Any], Any]) -> None:
    x, model = torch.ones(4, 3), Trainer().model
    compiled = dovetail.compile(model, max_variants=3)
    compiled(x)
    twin = copied(compiled)
    assert torch.equal(twin(x), model(x))
    assert twin.options.max_variants == 3
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(twin(x), model(x)) is (copied is copy.copy)


def test_local_functions_have_no_pickle() -> None:
    """As in eager mode; a copy is as good as another step of the same function."""
    step = dovetail.compile_step(lambda x: x * 2)
    assert torch.equal(copy.deepcopy(step)(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(step)
