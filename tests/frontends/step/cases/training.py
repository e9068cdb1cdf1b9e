"""What the features of the matrix begin with: a model, its optimizers and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn, optim

from tests.frontends.step.cases.models import Model
from tests.frontends.step.cases.optimizers import Optimizers, Recipe
from tests.frontends.step.twins import Call, Step, Twin

_BATCHES = 3


class Training:
    """A model, its optimizers and its batches, made again. Steps read the first two; the loop has the batches."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model.entry.build().train()
        self.recipe = recipe
        self.batches = model.entry.batches(_BATCHES)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Each parameter once."""
        return list(self.model.parameters())

    def optimizers(self) -> Optimizers:
        """Optimizers of all parameters."""
        return self.recipe.build(self.parameters)

    def batch(self, number: int) -> dict[str, Any]:
        """A copy of the batch of turn `number`."""
        return {name: tensor.clone() for name, tensor in self.batches[number % len(self.batches)].items()}

    def call(self, number: int) -> Call:
        """A call with a batch."""
        return Call((self.batch(number),))

    def twin(self, optimizers: Optimizers, step: Step | None = None, /, **more: Any) -> Twin:
        """The side with this step, in the plain loop unless `more` says otherwise."""
        if step is not None:
            more["steps"] = {"step": step}
        more.setdefault("call", self.call)
        named: dict[str, optim.Optimizer] = {str(k): it for k, it in enumerate(optimizers)}
        return Twin(models={"model": self.model, **more.pop("models", {})}, optimizers=named, **more)


@dataclass(frozen=True)
class Feature:
    """One thing that training loops do.

    make: a side that does it. twice: it differentiates gradients. partial: it asks for gradients of chosen tensors, or
    of none, which a reentrant checkpoint does not allow. captures, eager_calls, keep_grads,
    options: see `Case`. pair: it takes the model of two players, and no other does.
    """

    name: str
    make: Callable[[Training], Twin]
    captures: int | None = 1
    eager_calls: int | None = 0
    twice: bool = False
    partial: bool = False
    keep_grads: bool = True
    pair: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def suits(self, model: Model) -> bool:
        """Whether eager can train this model in this way."""
        if self.pair != model.pair or (self.twice and not model.twice):
            return False
        return not (model.nested and self.partial)
