"""Freezing leaves Python's objects as they were, and refuses a model whose later calls would be other programs."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import CaptureFailed, IteratorRead, NotFreezable, OutsideRead, PythonSideEffect

X = torch.linspace(-1, 1, 12).reshape(3, 4)
SEEN: dict[str, int] = {"calls": 0}


class _Model(nn.Module):
    """Holds a weight itself, and state in numbers, lists and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, 16).reshape(4, 4))
        self.inner = nn.GRU(4, 4)
        self.calls = 0
        self.shapes: list[Any] = []
        self.notes: dict[str, Any] = {}
        self.scale: float | None = None
        self.numbers = itertools.count(1)
        self.generator = np.random.default_rng(0)

    def state(self) -> list[Any]:
        own = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        drawn = random.getstate(), np.random.get_state()[1].tolist(), self.generator.bit_generator.state
        return [
            *(own.keys(), self.calls, self.scale, repr(self.numbers), list(self.shapes), dict(self.notes)),
            *(SEEN["calls"], drawn, torch.get_rng_state().tolist(), self.weight, list(vars(self.inner))),
        ]


class _Counts(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.shapes.append(tuple(x.shape))
        self.notes["last"] = len(self.shapes)
        self.inner.label = self.calls
        SEEN["calls"] += 1
        return x @ self.weight


class _Remembers(_Model):
    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = x.shape[-1] ** -0.5
        return x @ self.weight * self.scale


class _WritesOnly(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.last_rows = x.dim()
        self.label = "called"
        return x @ self.weight


@pytest.mark.parametrize("kind", [_Counts, _Remembers, _WritesOnly])
@pytest.mark.parametrize("sizes", [None, "static"])
def test_objects_are_as_before(kind: type[_Model], sizes: Any) -> None:
    model = kind()
    before = model.state()
    frozen = dovetail.freeze(model, (X,), dynamic_shapes=sizes)
    assert model.state() == before
    with torch.no_grad():
        assert all(torch.equal(frozen(X), model(X)) for _ in range(3))


class _Scaled(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.weight * self.calls


class _ConstantOf(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.weight + torch.tensor([0.0, 0.0, 0.0, float(self.calls)])


class _Prepares(_Model):
    def forward(self, x: Tensor) -> Tensor:
        if not self.notes:
            self.notes["is_ready"] = True
            x = x * 2
        return x @ self.weight


class _ReturnsNumber(_Model):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return x @ self.weight, self.calls


class _Alternates(_Model):
    def forward(self, x: Tensor) -> Any:
        self.calls = 1 - self.calls
        return x @ self.weight if self.calls else x


@pytest.mark.parametrize("kind", [_Scaled, _ConstantOf, _Prepares, _ReturnsNumber, _Alternates])
@pytest.mark.parametrize("sizes", [None, "static"])
def test_a_model_of_other_programs_is_refused(kind: type[_Model], sizes: Any) -> None:
    model = kind()
    before = model.state()
    changed = r"its next call would be another program, because its code changes (\w+\.calls|a dict)"
    with pytest.raises(NotFreezable, match=changed):
        dovetail.freeze(model, (X,), dynamic_shapes=sizes)
    assert model.state() == before


def test_the_way_out() -> None:
    model = _Prepares()
    with torch.no_grad():
        model(X)
        frozen = dovetail.freeze(model, (X,))
        assert torch.equal(frozen(X), model(X))


class _Draws(_Model):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * random.random()


class _DrawsOfItsOwn(_Model):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * float(self.generator.random())


class _Iterates(_Model):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * next(self.numbers)


class _LeavesTensor(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x @ self.weight
        return self.last


class _Deletes(_Model):
    def forward(self, x: Tensor) -> Tensor:
        del self.scale
        return x @ self.weight


class _Raises(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.fresh = 1
        self.shapes.append(1)
        raise ValueError("no")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (_Draws, OutsideRead),
        (_DrawsOfItsOwn, OutsideRead),
        (_Iterates, IteratorRead),
        (_LeavesTensor, PythonSideEffect),
        (_Deletes, PythonSideEffect),
        (_Raises, CaptureFailed),
    ],
)
def test_refusals_leave_objects_as_before(kind: type[_Model], error: type[Exception]) -> None:
    model = kind()
    before = model.state()
    with pytest.raises(error):
        dovetail.freeze(model, (X,))
    assert model.state() == before


class _SetsAndDeletes(_Model):
    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(1)
        self.inner.label = len(self.shapes)
        del self.calls
        return x @ self.weight


@pytest.mark.parametrize(
    "door",
    [
        lambda model: dovetail.freeze(model, (X,)),
        lambda model: dovetail.compile(model)(X),
        lambda model: dovetail.compile(model, example_inputs=(X,)),
        lambda model: dovetail.estimate(model, X),
    ],
)
def test_a_refusal_at_the_end_leaves_objects_as_before(door: Any) -> None:
    model = _SetsAndDeletes()
    before = model.state()
    with pytest.raises(PythonSideEffect):
        door(model)
    assert model.state() == before


class _CountsOutside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Counting()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ torch.ones(4, 4)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_looking_at_a_model_leaves_objects_as_before() -> None:
    model = _CountsOutside()
    dovetail.estimate(model, X)
    compiled = dovetail.compile(model, example_inputs=(X,))
    dovetail.analyse(model, X)
    assert model.inner.calls == 0
    assert [torch.equal(compiled(X), X * k @ torch.ones(4, 4)) for k in (1, 2, 3)] == [True] * 3
    assert model.inner.calls == 3


def test_a_table_that_the_first_call_makes_is_made_before() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables: dict[int, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] not in self.tables:
                self.tables[x.shape[1]] = torch.arange(x.shape[1]) * 0.5
            return x * self.tables[x.shape[1]]

    model, x = Tables().eval(), torch.randn(2, 3)
    with pytest.raises(PythonSideEffect, match="call the model once before it is frozen"):
        dovetail.freeze(model, (x,))
    assert model.tables == {}
    wanted = model(x)
    assert torch.equal(dovetail.freeze(model, (x,))(x), wanted)
