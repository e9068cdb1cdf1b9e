"""Functions that remember their results (`functools.lru_cache`) keep no tensors of recordings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


@functools.lru_cache
def table(size: int) -> Tensor:
    """As masks and positions are made."""
    return torch.arange(float(size))


@functools.cache
def tables(size: int) -> dict[str, Any]:
    """The same, in a dictionary."""
    return {"positions": torch.arange(float(size)), "size": size}


@functools.cache
def settings() -> list[float]:
    """Without tensors."""
    return [2.0]


class Rotary:
    """A module's helper with a cached method."""

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def angles(self, size: int) -> Tensor:
        """Of positions."""
        return torch.arange(float(size)) * 0.5


ROTARY = Rotary()
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "table": (lambda x: x + table(x.shape[0]), lambda: table(3)),
    "tables": (lambda x: x + tables(x.shape[0])["positions"], lambda: tables(3)["positions"]),
    "method": (lambda x: x + ROTARY.angles(x.shape[0]), lambda: ROTARY.angles(3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_tensors_of_recordings_are_remembered(name: str) -> None:
    function, remembered = FUNCTIONS[name]
    for cached in (table, tables, Rotary.angles):
        cached.cache_clear()
    compiled = dovetail.compile(function)
    for size in (3, 4, 3, 5, 4):
        found = compiled(torch.ones(size))
        assert type(found) is Tensor
        assert torch.equal(found, function(torch.ones(size)))
        assert type(remembered()) is Tensor
    for cached in (table, tables, Rotary.angles):
        cached.cache_clear()
    assert torch.equal(compiled(torch.ones(3)), function(torch.ones(3)))


def test_what_holds_no_tensors_is_remembered() -> None:
    compiled = dovetail.compile(lambda x: x * settings()[0])
    compiled(torch.ones(3))
    known = settings()
    compiled(torch.ones(4))
    assert settings() is known
