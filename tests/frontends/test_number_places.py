"""Whole numbers among the arguments as places and sizes: after programs for two, one is for all of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from tests.place_programs import followed_function
from tests.rotation import rotated

CALLS = 30
X = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def cache_of_keys(x: Tensor, cache: Tensor, at: int) -> Tensor:
    cache[:, at : at + 1] = x[:2, None, :8] @ WEIGHT
    attention = torch.softmax(x[:2, None, :8] @ cache[:, : at + 1].transpose(1, 2), -1)
    return attention @ cache[:, : at + 1]


def ring(x: Tensor, cache: Tensor, at: int) -> Tensor:
    cache[0, at % 12] += x[0, :8]
    return cache[0, (at + 1) % 12] * cache.mean()


def crop(x: Tensor, cache: Tensor, at: int) -> Tensor:
    return (x[:, at : at + 8] * 2).sum(0)


def head(x: Tensor, cache: Tensor, at: int) -> Any:
    return x[:, : at + 2].softmax(-1), x[:, : at + 2].shape, at * 2


def from_the_end(x: Tensor, cache: Tensor, at: int) -> Tensor:
    return x[..., -at - 1] + x[0, None, at]


def positions(x: Tensor, cache: Tensor, at: int) -> Tensor:
    return F.embedding(torch.arange(at, at + 4), cache.flatten(0, 1)).cumsum(0)


def made(x: Tensor, cache: Tensor, at: int) -> Tensor:
    return torch.zeros(at + 2, 4).index_fill(0, torch.tensor([at]), 1.0) + x[:, 0]


def halves(x: Tensor, cache: Tensor, at: int) -> Any:
    return x.repeat(1, at + 2).view(at + 2, -1), x.roll(at // 2, 1).narrow(1, at % 8, 4)


FUNCTIONS = [cache_of_keys, ring, crop, head, from_the_end, positions, made, halves]


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"executors": ("aten",)}], ids=["", "dynamic", "aten"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_program_is_for_many_numbers(function: Callable[..., Any], options: Any) -> None:
    compiled = dovetail.compile(function, **options)
    caches = [torch.zeros(2, 40, 8) for _ in range(2)]
    for at in range(CALLS):
        got, expected = compiled(X + at, caches[0], at), function(X + at, caches[1], at)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert torch.equal(*caches)
    assert compiled.stats.captures <= 4, compiled.stats
    assert not compiled.stats.eager_calls


def test_numbers_of_objects_are_places() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.at = nn.Linear(8, 8), 0

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x[self.at : self.at + 3]).tanh()

    block = Block()
    compiled = dovetail.compile(block)
    for block.at in range(CALLS):
        x, y = (torch.arange(320.0).view(40, 8).requires_grad_() for _ in range(2))
        got, expected = compiled(x), block(y)
        got.sum().backward()
        expected.sum().backward()
        assert torch.equal(got, expected)
        assert torch.equal(*(z.grad for z in (x, y) if z.grad is not None))
    assert compiled.stats.captures <= 4


def test_a_place_out_of_range_raises_what_eager_raises() -> None:
    compiled = dovetail.compile(lambda x, at: x[at] * 2)
    for at in (0, 1, 2, 3, 5):
        assert torch.equal(compiled(X.t(), at), X.t()[at] * 2)
    for at in (40, -41):
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(X.t(), at)
    assert torch.equal(compiled(X.t(), -40), X[:, 0] * 2)


def test_another_kind_of_number_is_another_program() -> None:
    def function(x: Tensor, at: Any) -> Tensor:
        return x[at]

    compiled = dovetail.compile(function)
    for at in (0, 1, 2, 3, True, False, None, 4, torch.tensor(5), slice(0, 2), 6):
        assert torch.equal(compiled(X.t(), at), function(X.t(), at)), at


def test_a_size_of_zero_or_one_has_a_program_of_its_own() -> None:
    def function(x: Tensor, count: int) -> Any:
        part = x[:count]
        return part, part.stride(), part.is_contiguous(), part.sum()

    compiled = dovetail.compile(function)
    for count in (4, 5, 6, 1, 7, 0, 9, 1, 0, 12):
        torch.testing.assert_close(compiled(X.t(), count), function(X.t(), count), rtol=0, atol=0)
    assert compiled.stats.captures <= 5


def test_a_number_of_parts_has_a_program_of_its_own() -> None:
    compiled = dovetail.compile(lambda x, size: [part.sum() for part in x.split(size)], max_variants=20)
    for size in (1, 2, 3, 4, 5, 7, 3, 13):
        assert torch.equal(torch.stack(compiled(X.t(), size)), torch.stack([p.sum() for p in X.t().split(size)]))


def test_under_a_limit_every_size_is_known() -> None:
    compiled = dovetail.compile(lambda x, count: x[:count].exp().sum(), memory_limit="1MiB")
    for count in range(1, 7):
        compiled(torch.ones(100), count)
    assert compiled.stats.captures == 6


def test_what_the_code_asks_of_a_place_is_a_fact() -> None:
    state = SimpleNamespace(seen=())

    def function(x: Tensor, at: int) -> Tensor:
        part = x[at : at + 4]
        return part.sum() if part.shape[0] < 4 else part.mean() + (1 if at > 20 else 0)

    compiled = dovetail.compile(function)
    for at in (0, 3, 9, 36, 37, 38, 25, 10, 30, 38, 36, 2):
        assert torch.equal(compiled(X.t(), at), function(X.t(), at)), (at, state)


@pytest.mark.filterwarnings("ignore:.*was compiled for.*")
@pytest.mark.parametrize("seed", rotated(list(range(400)), 16))
def test_random_functions_of_places(seed: int) -> None:
    options: Any = ({}, {"dynamic": True}, {"executors": ("aten",)}, {"verify": 2})[seed % 4]
    got, program = followed_function(seed, lambda function: dovetail.compile(function, **options))
    expected, _ = followed_function(seed, lambda function: function)
    assert repr(got) == repr(expected[: len(got)]), program
