"""Tensors and objects of a compiled function's state that are other ones in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailWarning, PythonSideEffect

CALLS = 20
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class State:
    """Whose attributes a user sets."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Settings:
    def __init__(self, scale: float, shift: Tensor) -> None:
        self.scale, self.shift = scale, shift


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        made = self.linear(x)
        return made if self.mask is None else made * self.mask  # type: ignore[unreachable]


def tensor(n: int) -> Tensor:
    return torch.full((8,), float(n))


STATE = State()
SET: dict[str, tuple[Callable[[Tensor], Any], Callable[[int], Any]]] = {
    "tensor": (lambda x: x * STATE.held, tensor),
    "dictionary": (lambda x: x * STATE.held["w"] + STATE.held["b"], lambda n: {"w": tensor(n), "b": tensor(2)}),
    "list": (lambda x: x * sum(STATE.held), lambda n: [tensor(n), tensor(n + 1), tensor(3)]),
    "tuple": (lambda x: x * STATE.held[0] + STATE.held[1], lambda n: (tensor(n), float(n))),
    "object": (lambda x: x * STATE.held.scale + STATE.held.shift, lambda n: Settings(2.0, tensor(n))),
    "numbers": (lambda x: x * STATE.held.scale, lambda n: Settings(float(n), tensor(0))),
    "nested": (lambda x: x * STATE.held["all"][1].shift, lambda n: {"all": [tensor(1), Settings(1.0, tensor(n))]}),
    "two": (lambda x: x * STATE.held + STATE.other, tensor),
}


@pytest.mark.parametrize("name", SET)
def test_one_program_for_what_is_replaced(name: str) -> None:
    function, make = SET[name]
    compiled = dovetail.compile(function)
    for n in range(CALLS):
        STATE.held, STATE.other = make(n), tensor(n + 3)
        assert torch.equal(compiled(X), function(X)), n
    assert compiled.stats.captures <= 5, compiled.stats
    assert not compiled.stats.eager_calls


def test_attributes_of_modules_and_their_gradients() -> None:
    model, other = Masked(), Masked()
    other.load_state_dict(model.state_dict())
    compiled = dovetail.compile(model)
    for n in range(CALLS):
        mask = None if n < 3 else tensor(n).requires_grad_(n > 8)
        model.mask = mask if mask is None else mask.detach().requires_grad_(mask.requires_grad)  # type: ignore[assignment]
        other.mask = mask  # type: ignore[assignment]
        for each in (compiled, other):
            each(X).square().sum().backward()
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert mine.grad is not None
            assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
        if mask is not None and mask.requires_grad:
            assert torch.equal(model.mask.grad, mask.grad)  # type: ignore[union-attr]
    assert compiled.stats.captures <= 6, compiled.stats
    assert not compiled.stats.eager_calls


def test_variables() -> None:
    known: dict[str, Any] = {"W": tensor(0)}
    exec("def function(x): return x * W", known)
    function: FunctionType = known["function"]
    compiled, weight = dovetail.compile(function), tensor(0)
    of_cell = dovetail.compile(lambda x: x + weight)
    for n in range(CALLS):
        known["W"] = weight = tensor(n)
        assert torch.equal(compiled(X), X * known["W"])
        assert torch.equal(of_cell(X), X + weight)
    assert compiled.stats.captures == of_cell.stats.captures == 3


def test_writes_reach_what_is_there() -> None:
    state = State(total=tensor(0))
    compiled = dovetail.compile(lambda x: state.total.add_(x[0]).sum())
    for n in range(CALLS):
        state.total = total = tensor(n)
        expected = (total + X[0]).sum()
        assert torch.equal(compiled(X), expected)
        assert torch.equal(total, tensor(n) + X[0])
        assert state.total is total


def test_what_is_an_argument_as_well_is_one_tensor() -> None:
    state = State(held=tensor(0))

    def function(x: Tensor) -> Tensor:
        x.add_(1)
        return state.held * 2

    compiled = dovetail.compile(function)
    for n in range(CALLS):
        state.held = tensor(n)
        x = state.held if n % 3 == 1 else tensor(n)
        expected = tensor(n + (n % 3 == 1)) * 2
        assert torch.equal(compiled(x), expected), n


def test_code_that_changes_what_is_there_is_refused_as_before() -> None:
    state = State(held=[tensor(0)])

    def function(x: Tensor) -> Tensor:
        state.held.append(x * 2)
        return x * state.held[0]

    compiled = dovetail.compile(function)
    for n in range(5):
        state.held = held = [tensor(n)]
        with pytest.raises(PythonSideEffect):
            compiled(X)
        assert state.held is held
        assert len(held) == 1


def test_code_that_compares_what_is_there() -> None:
    state = State(now={"w": tensor(0)}, best=None)

    def function(x: Tensor) -> Tensor:
        return x * state.now["w"] * (2 if state.now is state.best else 3)

    compiled = dovetail.compile(function, max_variants=40)
    for n in range(CALLS):
        state.now = {"w": tensor(n)}
        if n % 4 == 3:
            state.best = state.now if n % 8 == 3 else {"w": tensor(n)}
        assert torch.equal(compiled(X), function(X)), n


def test_one_container_in_two_places() -> None:
    state = State(first={"w": tensor(0)}, second={"w": tensor(1)})

    def function(x: Tensor) -> Tensor:
        return x * state.first["w"] + state.second["w"]

    compiled = dovetail.compile(function, max_variants=40)
    for n in range(CALLS):
        state.first = {"w": tensor(n)}
        state.second = state.first if n % 2 else {"w": tensor(n + 1)}
        assert torch.equal(compiled(X), function(X)), n


def test_other_shapes_kinds_and_nothing() -> None:
    state = State(held=None)

    def function(x: Tensor) -> Tensor:
        held = getattr(state, "held", 3.0)
        return x * held if held is not None else x

    compiled = dovetail.compile(function, max_variants=20)
    wide = torch.arange(32.0).view(4, 8)
    for held in (
        None,
        tensor(1),
        tensor(2),
        tensor(3),
        wide,
        2.0,
        None,
        tensor(4).double(),
        wide + 1,
        tensor(5),
        "gone",
    ):
        state.held = held
        if held == "gone":
            del state.held
        assert torch.equal(compiled(X), function(X)), held


def test_programs_for_one_call_each_end() -> None:
    class Holder:
        def __init__(self, n: int) -> None:
            self.value, self.model = float(n), nn.Identity()

    def function(x: Tensor) -> Tensor:
        held = STATE.held
        return held.model(x) * 2 if held.value >= 0 else x

    compiled = dovetail.compile(function)

    def calls() -> Iterator[Tensor]:
        for n in range(400):
            STATE.held = Holder(n)
            yield compiled(X)

    with pytest.warns(DovetailWarning, match="no other call was for any of these programs"):
        results = list(calls())
    assert all(torch.equal(result, X * 2) for result in results)
    assert compiled.stats.captures < 30


@pytest.mark.parametrize("options", [{"dynamic": True}, {"executors": ("aten",)}, {"numerics": "fast"}, {"verify": 2}])
def test_with_options(options: Any) -> None:
    function, make = SET["dictionary"]
    compiled = dovetail.compile(function, **options)
    for n in range(8):
        STATE.held = make(n)
        assert torch.equal(compiled(X[: 2 + n % 2]), function(X[: 2 + n % 2])), n
