"""Arguments and results inside containers and objects."""

from __future__ import annotations

import random
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import PythonSideEffect, UnsupportedOutput
from dovetail.frontends.structure import changes, flatten, flatten_call, unflatten

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Batch:
    """Tensors, numbers, and more of the same inside."""

    rows: Tensor
    scale: float = 1.0
    more: dict[str, Any] = field(default_factory=dict)

    def weighted(self) -> Tensor:
        """What the code uses."""
        return self.rows * self.scale


@dataclass(frozen=True, slots=True)
class Result:
    """Cannot be changed."""

    value: Tensor
    parts: Pair
    name: str = "result"


def work(batch: Batch, *, offset: float = 0.0) -> Result:
    value = batch.weighted().exp() + offset + batch.more["pair"].left
    return Result(value, Pair(value.t(), batch.rows), "made")


def make(seed: int, scale: float = 2.0) -> Batch:
    torch.manual_seed(seed)
    return Batch(torch.randn(2, 3, requires_grad=True), scale, {"pair": Pair(torch.randn(3), 1)})


def test_dataclasses_come_and_go() -> None:
    compiled = dovetail.compile(work)
    for seed, scale in ((0, 2.0), (1, 2.0), (2, 3.0)):
        mine, theirs = make(seed, scale), make(seed, scale)
        actual, expected = compiled(mine, offset=0.5), work(theirs, offset=0.5)
        assert isinstance(actual, Result)
        assert isinstance(actual.parts, Pair)
        assert actual.name == "made"
        assert actual.parts.right is mine.rows
        assert torch.equal(actual.value, expected.value)
        assert torch.equal(actual.parts.left, expected.parts.left)
        actual.parts.left.sum().backward()
        expected.parts.left.sum().backward()
        assert mine.rows.grad is not None
        assert torch.equal(mine.rows.grad, theirs.rows.grad)
    assert len(compiled.graphs) == 2


def test_a_tensor_in_a_dataclass_is_written_in_place() -> None:
    def f(batch: Batch) -> Tensor:
        batch.rows.add_(1)
        return batch.rows * 2

    rows = torch.zeros(2)
    assert torch.equal(dovetail.compile(f)(Batch(rows)), torch.full((2,), 2.0))
    assert torch.equal(rows, torch.ones(2))


def _assigns(batch: Batch, table: dict[str, Any], kept: list[Any]) -> Tensor:
    batch.rows = batch.rows + 1
    return batch.rows


def _adds_a_key(batch: Batch, table: dict[str, Any], kept: list[Any]) -> Tensor:
    table["new"] = batch.rows * 2
    return batch.rows + 1


def _appends(batch: Batch, table: dict[str, Any], kept: list[Any]) -> Tensor:
    kept.append(3)
    return batch.rows + 1


def _adds_an_attribute(batch: Batch, table: dict[str, Any], kept: list[Any]) -> Tensor:
    batch.extra = 1  # type: ignore[attr-defined]
    return batch.rows + 1


@pytest.mark.parametrize("function", [_assigns, _adds_a_key, _appends, _adds_an_attribute])
def test_a_change_of_an_argument_is_refused_and_not_made(function: Callable[..., Tensor]) -> None:
    batch, table, kept = Batch(torch.ones(2)), {"old": torch.ones(1)}, [1]
    rows = batch.rows
    with pytest.raises(PythonSideEffect, match="container among its arguments"):
        dovetail.compile(function)(batch, table, kept)
    assert batch.rows is rows
    assert not hasattr(batch, "extra")
    assert list(table) == ["old"]
    assert kept == [1]


class Plain:
    """No dataclass."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.inner = SimpleNamespace(offset=1.0, last=None)


def test_attributes_of_an_object_that_is_passed_are_never_stale() -> None:
    compiled, settings, x = dovetail.compile(lambda settings, x: x * settings.scale + settings.inner.offset), Plain(), 2
    for scale, offset in ((2.0, 1.0), (3.0, 1.0), (3.0, 5.0)):
        settings.scale, settings.inner.offset = scale, offset
        assert compiled(settings, torch.full((1,), float(x))).item() == x * scale + offset


def test_a_tensor_left_in_an_object_that_is_passed_is_refused() -> None:
    def f(settings: Plain, x: Tensor) -> Tensor:
        settings.inner.last = x * 2
        return x + 1

    settings, compiled = Plain(), dovetail.compile(f)
    compiled(settings, torch.ones(2))  # in eager mode: it may do so only once
    settings.inner.last = None
    with pytest.raises(PythonSideEffect, match="left a tensor in a dict"):
        compiled(settings, torch.ones(2))
    assert settings.inner.last is None


def test_an_object_of_another_kind_is_no_result() -> None:
    with pytest.raises(UnsupportedOutput, match="Plain"):
        dovetail.compile(lambda x: Plain())(torch.ones(2))


def test_taking_apart_and_putting_together() -> None:
    tree = ({"a": make(0)}, [Result(torch.ones(1), Pair(1, make(1)))], 7)
    leaves, structure = flatten(tree)
    same_leaves, same = flatten(unflatten(leaves, structure))
    assert structure == same
    assert all(a is b for a, b in zip(leaves, same_leaves, strict=True))
    again = unflatten(leaves, structure)
    assert not changes(again, leaves, structure)
    again[1][0].parts.right.scale = 9.0
    assert changes(again, leaves, structure)
    assert structure != flatten(({"a": 1}, [2], 7))[1]


def _tree(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.choice(["leaf", "leaf", "list", "tuple", "dict", "odd"]) if depth else "leaf"
    parts = [_tree(rng, depth - 1) for _ in range(rng.randrange(4))] if depth else []
    if kind == "list":
        return parts
    if kind == "tuple":
        return tuple(parts)
    if kind == "dict":
        return dict(zip(rng.sample("abcd", len(parts)), parts, strict=True))
    if kind == "odd":
        return rng.choice([Pair(1, parts), OrderedDict(a=parts), {1: parts}, {True: parts}, torch.Size((2,)), {2}, ()])
    return rng.choice([None, 1, 2.5, True, "text", torch.ones(1)])


@pytest.mark.parametrize("seed", range(60))
def test_calls_are_taken_apart_as_any_container(seed: int) -> None:
    rng = random.Random(seed)
    args, kwargs = tuple(_tree(rng) for _ in range(rng.randrange(3))), {"a": _tree(rng)}
    (leaves, structure), (expected, of_torch) = flatten_call(args, kwargs), flatten((args, kwargs))
    assert len(leaves) == len(expected)
    assert all(a is b for a, b in zip(leaves, expected, strict=True))
    assert structure == of_torch
    assert repr(unflatten(leaves, structure)) == repr(pytree.tree_unflatten(expected, _spec(of_torch)))


def _spec(structure: Any) -> Any:
    assert isinstance(structure, pytree.TreeSpec)
    return structure
