"""Primitives: operators of dovetail's own. `ops.prims` has most of them; here are those that lifting a graph makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dovetail.ir.text import operator_text
from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of


@dataclass(frozen=True, slots=True)
class Prim:
    """A primitive operator. It has no schema; see `ops.facts.Facts` for the flags.

    python: an expression over `dovetail.ops.prims` (as `prims`) and `torch` that gives this primitive. gives_tuple: of
    several results, whether they come in a tuple; else in a list. checks: raises when something is not as it should be,
    and does nothing else; its last operand only says what. marks: does nothing at all; where it stands says something.
    outside: does something outside the program that cannot be taken back. takes_memory: for itself, as kernels of torch
    do that it calls; on tensors of fractions alone, which may hold any. prepared: of operands that are plain tensors,
    those that it is tried on to see how much.
    """

    name: str
    run: Callable[..., object]
    python: str
    draws: bool = False
    reads_generator: bool = False
    effect: bool = False
    gives_tuple: bool = False
    checks: bool = False
    marks: bool = False
    outside: bool = False
    takes_memory: bool = False
    prepared: Callable[[list[Any]], list[Any]] | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.run(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return self.name  # torch.fx names nodes and writes code by it

    def __str__(self) -> str:
        return self.name


def draws_numbers(op: Overload) -> bool:
    """Whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in tags_of(op) or any(
        "Generator" in argument.type for argument in schema_of(op).arguments
    )


def is_opaque(op: Overload) -> bool:
    """Whether nothing is known of an operator: it is not one of torch's."""
    return schema_of(op).namespace not in ("aten", "prims")


# --- results in lists ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlatResults:
    """`op`, whose results are tensors and lists of tensors, as one list."""

    op: Overload

    def __call__(self, *args: object, **kwargs: object) -> list[object]:
        return flattened(self.op(*args, **kwargs))


def flattened(results: object) -> list[object]:
    """The items of nested sequences, depth first."""
    return [item for _, item in places_in(results)]


def places_in(results: object, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], object]]:
    """The items of nested sequences, depth first, each with the index at each depth."""
    if isinstance(results, tuple | list):
        return [found for index, part in enumerate(results) for found in places_in(part, (*place, index))]
    return [(place, results)]


@cache
def flat_results(op: Overload) -> Prim:
    """The primitive that is `op`, but for the form of its results; see `FlatResults`."""
    schema = schema_of(op)
    name = "_".join(filter(None, ("flat", schema.namespace, schema.name.strip("_"), schema.overload)))
    python = f"prims.flat_results({operator_text(op)})"
    return Prim(name, FlatResults(op), python, draws=draws_numbers(op), effect=is_opaque(op))
