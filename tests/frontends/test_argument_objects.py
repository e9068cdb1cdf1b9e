"""Objects of any class among the arguments of compiled functions, new ones in each call."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import PythonSideEffect

CALLS = 20
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


class Batch:
    scale = 2.0

    def __init__(self, x: Tensor, y: Tensor, **more: Any) -> None:
        self.x, self.y = x, y
        vars(self).update(more)

    def loss(self, weight: Tensor) -> Tensor:
        return (self.x @ weight - self.y).square().mean() * self.scale

    @property
    def doubled(self) -> Tensor:
        return self.x * 2


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Half(Slotted):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.weights = [x.mean(), 0.5]


class Encoded(UserDict):  # type: ignore[type-arg]
    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x=x, y=y)
        self._encodings = [object()]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Sample:
    x: Tensor
    y: Tensor
    name: str = "sample"
    parts: list[Any] = field(default_factory=list)


def of_fields(batch: Any) -> Tensor:
    return ((batch.x @ WEIGHT) - batch.y).square().mean()


def tensors(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 8, generator=generator)


def check(function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]], captures: int) -> Any:
    """Calls with objects made anew equal eager mode's, and take few programs."""
    compiled = dovetail.compile(function)
    for seed in range(CALLS):
        got, expected = compiled(*make(seed)), function(*make(seed))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert compiled.stats.captures <= captures, compiled.stats
    assert not compiled.stats.eager_calls
    return compiled


@pytest.mark.parametrize(
    "cls", [Batch, Slotted, Half, Encoded, Sample, lambda x, y: SimpleNamespace(x=x, y=y)], ids=lambda x: x.__name__
)
def test_new_objects_of_many_classes(cls: Callable[..., Any]) -> None:
    check(of_fields, lambda seed: (cls(*tensors(seed)),), 2)


def test_methods_and_attributes_of_classes() -> None:
    def function(batch: Batch, *, weight: Tensor = WEIGHT) -> Any:
        return batch.loss(weight), batch.doubled, hasattr(batch, "mask"), getattr(batch, "mask", 3)

    check(function, lambda seed: (Batch(*tensors(seed)),), 2)


def test_objects_inside_objects_and_containers() -> None:
    def function(batches: Any) -> Any:
        return [batch.loss(WEIGHT) for batch in batches["all"]], batches["last"].inner.x.sum()

    def make(seed: int) -> Any:
        first, second = Batch(*tensors(seed)), Batch(*tensors(seed + 100))
        return ({"all": [first, second], "last": Batch(*tensors(7), inner=Slotted(*tensors(seed)))},)

    check(function, make, 3)


def test_what_is_not_read_may_be_anything() -> None:
    def make(seed: int) -> Any:
        more = {"names": [f"{seed}.png", str(seed)], "index": seed, "at": object(), "made": SimpleNamespace(n=seed)}
        return (Batch(*tensors(seed), **more),)

    check(of_fields, make, 2)
    check(of_fields, lambda seed: (Sample(*tensors(seed), name=f"sample {seed}", parts=[object()]),), 1)


def test_numbers_in_objects_are_inputs_and_texts_are_guarded() -> None:
    def function(batch: Any) -> Tensor:
        return batch.x[batch.at : batch.at + 2] * batch.rate if batch.mode == "train" else batch.x[: batch.at + 1]

    def make(seed: int) -> Any:
        mode = "train" if seed % 3 else "test"
        return (Batch(*tensors(seed), at=seed % 3, rate=0.5 + seed, mode=mode),)

    compiled = dovetail.compile(function, max_variants=20)
    for seed in range(2 * CALLS):
        assert torch.equal(compiled(*make(seed)), function(*make(seed)))
    assert compiled.stats.captures <= 9, compiled.stats
    assert compiled.stats.variants[-1].calls > 3


def test_code_that_compares_objects_gets_the_ones_that_it_was_given() -> None:
    kept = SimpleNamespace(batch=None, seen=[])

    def function(batch: Any) -> Tensor:
        is_kept = batch is kept.batch or any(batch is one for one in kept.seen)
        return batch.x * (2 if is_kept else 3)

    compiled = dovetail.compile(function, max_variants=40)
    batches = [Batch(*tensors(seed)) for seed in range(6)]
    for n in range(CALLS):
        batch = batches[n % 6]
        if n == 4:
            kept.batch = batches[5]
        if n == 9:
            kept.seen = batches[:3]
        if n == 15:
            kept.batch, kept.seen = batches[3], []
        assert torch.equal(compiled(batch), function(batch)), n


def test_dataclasses_that_code_compares() -> None:
    kept = SimpleNamespace(batch=None)

    def function(batch: Sample) -> Tensor:
        return batch.x * (2 if batch is kept.batch else 3)

    compiled, batches = dovetail.compile(function), [Sample(*tensors(seed)) for seed in range(3)]
    for n in range(9):
        kept.batch = batches[1] if n > 2 else None
        assert torch.equal(compiled(batches[n % 3]), function(batches[n % 3])), n


@pytest.mark.parametrize("cls", [Batch, Sample])
def test_an_object_that_is_passed_twice_is_one(cls: Any) -> None:
    def function(first: Any, second: Any) -> Tensor:
        return first.x + second.x * (2 if first is second else 3)

    compiled = dovetail.compile(function)
    for seed in range(4):
        batch, other = cls(*tensors(seed)), cls(*tensors(seed + 50))
        for pair in ((batch, other), (batch, batch), (other, batch)):
            assert torch.equal(compiled(*pair), function(*pair))


def test_objects_that_lead_to_themselves() -> None:
    def make(seed: int) -> Any:
        batch = Batch(*tensors(seed))
        batch.itself = batch  # type: ignore[attr-defined]
        return (batch,)

    compiled = dovetail.compile(of_fields)
    for seed in range(5):
        assert torch.equal(compiled(*make(seed)), of_fields(*make(seed)))


def test_a_changed_object_is_refused_as_before() -> None:
    def function(batch: Any) -> Tensor:
        batch.prediction = batch.x @ WEIGHT
        return batch.prediction.sum()

    compiled, first = dovetail.compile(function), Batch(*tensors(3))
    assert torch.equal(compiled(first), first.prediction.sum())  # type: ignore[attr-defined]  # it may do so only once
    for seed in range(3):
        batch = Batch(*tensors(seed))
        with pytest.raises(PythonSideEffect, match=r"left a tensor in Batch\.prediction"):
            compiled(batch)
        assert not hasattr(batch, "prediction")


def test_code_that_raises_for_one_object_does_not_leave_the_others_whole() -> None:
    def function(batch: Any) -> Tensor:
        if batch.x.shape[0] != 4:
            raise ValueError("four rows")
        return of_fields(batch)

    compiled = dovetail.compile(function)
    for seed in range(CALLS):
        if seed == 5:
            with pytest.raises(ValueError, match="four rows"):
                compiled(Batch(torch.ones(3, 8), torch.ones(3, 8)))
        assert torch.equal(compiled(Batch(*tensors(seed))), function(Batch(*tensors(seed))))
    assert compiled.stats.captures <= 3


def test_all_attributes_are_read() -> None:
    def function(batch: Any) -> Any:
        return {name: value * 2 for name, value in vars(batch).items() if isinstance(value, Tensor)}, len(vars(batch))

    def make(seed: int) -> Any:
        return (Batch(*tensors(seed), **({"mask": torch.ones(2)} if seed > 9 else {})),)

    check(function, make, 3)


def test_copies_of_objects() -> None:
    def function(batch: Any) -> Tensor:
        other = copy.copy(batch)
        other.x = other.x * 2
        return of_fields(other) + of_fields(batch)

    check(function, lambda seed: (Batch(*tensors(seed)),), 2)


def test_gradients_reach_tensors_in_objects() -> None:
    module = nn.Linear(8, 8)
    compiled = dovetail.compile(lambda batch: (module(batch.x) - batch.y).square().mean())
    for seed in range(4):
        (x, y), grads = tensors(seed), []
        for function in (compiled, lambda batch: (module(batch.x) - batch.y).square().mean()):
            leaf = x.clone().requires_grad_()
            module.zero_grad()
            function(Batch(leaf, y)).backward()
            grads.append([leaf.grad, module.weight.grad])
        assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))  # type: ignore[arg-type]
    assert compiled.stats.captures == 2


@pytest.mark.parametrize("cls", [Batch, Encoded, Sample])
@pytest.mark.parametrize("is_loss", [True, False])
def test_gradients_where_not_all_of_an_object_is_read(cls: Any, is_loss: bool) -> None:
    """Backward is recorded by itself, and was taken for code that had read everything."""
    module = nn.Linear(8, 8)

    def function(batch: Any) -> Tensor:
        h = module(batch.x)
        return h.square().mean() if is_loss else h

    compiled = dovetail.compile(function)
    for seed in range(4):
        grads = []
        for call in (compiled, function):
            module.zero_grad()
            out = call(cls(*tensors(seed)))
            out.backward(torch.ones_like(out))
            grads.append(module.weight.grad)
        assert torch.equal(*grads)  # type: ignore[arg-type]
    assert compiled.stats.captures <= 2


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Any) -> Tensor:
        ctx.batch = batch
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad * len(ctx.batch.name), None


def test_what_only_backward_reads_is_not_anything() -> None:
    compiled, x = dovetail.compile(lambda batch: Scaled.apply(batch.x, batch).sum()), torch.ones(2)
    for name in ("a", "bc", "def"):
        leaf = x.clone().requires_grad_()
        compiled(Sample(leaf, x, name=name)).backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [len(name)] * 2


def test_writes_to_tensors_in_objects() -> None:
    def function(batch: Any) -> Tensor:
        batch.x[0] = batch.y[1]
        return batch.x.sum()

    compiled = dovetail.compile(function)
    for seed in range(5):
        mine, theirs = Batch(*tensors(seed)), Batch(*tensors(seed))
        assert torch.equal(compiled(mine), function(theirs))
        assert torch.equal(mine.x, theirs.x)
