"""Recording with symbolic sizes, and checking the program at a second size.

A program with symbolic sizes is correct by construction for every size that its guard accepts: what recording relied on
is in the guard. Even so, it is compared with a recording at another size, node by node.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dovetail.errors import BadDynamicShapes, DovetailError
from dovetail.frontends.freezing.call_form import same_tensors
from dovetail.frontends.freezing.examples import Example
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.freezing.record import MethodRecorder, Recorded
from dovetail.frontends.freezing.same_program import difference_at, is_known
from dovetail.frontends.freezing.shapes import FreeSizes
from dovetail.ir.sizes import Number, Scalar, SizeExpr, holds

_STEPS = (3, 1, 2, 4, -1, -2)
_ALL_CHOICES = 3
_ORDERS = frozenset({"ne", "lt", "le", "gt", "ge"})
_MOST_BEYOND = 2


def record_method(
    recorder: MethodRecorder, pool: Pool, example: Example, wish: Any
) -> tuple[tuple[Recorded, ...], tuple[str, ...]]:
    """The programs of a method for an example call, and what is fixed in them that might have been free.

    A model may ask whether two arguments are one tensor (`if query is key`), and nobody sees it: where the example has
    a tensor twice, there are programs for calls that have it twice as well, and others.
    wish: `dynamic_shapes`. A symbol stands for sizes above 1; sizes of 1 get programs of their own.
    Raises: BadDynamicShapes for a size that was asked for by name and cannot be free; DovetailError.
    """
    found, notes = _for_example(recorder, pool, example, wish)
    if not same_tensors(example.leaves):
        return found, notes
    try:
        others, more = _for_example(recorder, pool, example.apart(), wish)
    except DovetailError as error:
        return found, (
            *notes,
            f"arguments that are one tensor in the example must stay one tensor; otherwise: {_first_line(error)}",
        )
    return (*found, *others), tuple(dict.fromkeys((*notes, *more)))


def _for_example(
    recorder: MethodRecorder, pool: Pool, example: Example, wish: Any
) -> tuple[tuple[Recorded, ...], tuple[str, ...]]:
    free = example.free_sizes(wish)
    if not free.labels:
        return (recorder.record(pool, example, example.leaves),), free.notes
    try:
        found, notes = _free(recorder, pool, example, free)
    except DovetailError as error:
        if free.is_asked:
            raise
        found, notes = [], (f"every size is fixed; with symbolic sizes: {_first_line(error)}",)
    if not any(one.guard.holds([example.leaves[leaf] for leaf in one.arguments]) for one in found):
        found.insert(0, recorder.record(pool, example, example.leaves))
    return tuple(found), (*free.notes, *notes)


def _free(
    recorder: MethodRecorder, pool: Pool, example: Example, free: FreeSizes
) -> tuple[list[Recorded], tuple[str, ...]]:
    """The programs of free sizes, none when no size is free in the end; and what is fixed."""
    numbers = free.numbers(example.leaves)
    one = recorder.record(pool, example, free.resized(example.leaves, numbers), free.dims)
    symbols = _symbols(one, free)
    fixed, notes = _fixed(one, numbers, symbols, example)
    if fixed and free.is_asked:
        raise BadDynamicShapes(reason="; ".join(notes), hint="leave the size out, or change the model's code")
    if set(symbols) <= fixed:
        return [], notes
    second = _second(one, numbers, symbols, free, fixed)
    other = recorder.record(pool, example, free.resized(example.leaves, second))
    at = {symbol: second[label] for label, symbol in symbols.items()}
    difference = difference_at(one, other, at, pool.tensors)
    if difference:
        if free.is_asked:
            raise BadDynamicShapes(reason=f"at another size the model {difference}", hint="leave the size out")
        return [], (f"every size is fixed: at another size the model {difference}",)
    ones, failures = _ones(recorder, pool, example, free, {k: n for k, n in numbers.items() if k not in fixed})
    found = [_within_ranges(one, free, symbols), *ones]
    beyond = [_beyond(recorder, pool, example, free, each) for each in found] if free.is_asked else []
    return [*found, *(each for others in beyond for each in others)], (*notes, *failures)


def _ones(
    recorder: MethodRecorder, pool: Pool, example: Example, free: FreeSizes, numbers: Mapping[Hashable, int]
) -> tuple[list[Recorded], tuple[str, ...]]:
    """Programs in which some of the free sizes are 1: every choice of them for a few sizes, else one or all of them."""
    labels = [label for label in numbers if free.ranges.get(label, (0, None))[0] < 2]
    choices = [c for count in range(1, len(labels) + 1) for c in itertools.combinations(labels, count)]
    if len(labels) > _ALL_CHOICES:
        choices = [c for c in choices if len(c) in (1, len(labels))]
    found: list[Recorded] = []
    notes: list[str] = []
    for choice in choices:
        leaves = free.resized(example.leaves, {**free.numbers(example.leaves), **dict.fromkeys(choice, 1)})
        try:
            found.append(recorder.record(pool, example, leaves, free.dims))
        except DovetailError as error:
            where = " and ".join(map(repr, choice)) if free.is_asked else "the first dimension"
            notes.append(f"{where} cannot be 1: {_first_line(error)}")
    return found, tuple(notes)


def _beyond(recorder: MethodRecorder, pool: Pool, example: Example, free: FreeSizes, one: Recorded) -> list[Recorded]:
    """Programs for smaller sizes at which a fact does not hold that a program relies on, a few at most.

    Such is that another size, which is computed from them, is above 1. Where the model itself refuses these sizes,
    there is none.
    """
    numbers, found, seen = free.numbers(example.leaves), list[Recorded](), set[str]()
    symbols = _symbols(one, free)
    at = {symbol: numbers[label] for label, symbol in symbols.items()}
    settled = {label: 1 for label in numbers if label not in symbols}
    for label, symbol in symbols.items():
        for number in range(numbers[label] - 1, max(free.ranges.get(label, (0, None))[0], 2) - 1, -1):
            fact = _broken(one, {**at, symbol: number})
            if not isinstance(fact, SizeExpr) or fact.op not in _ORDERS or str(fact) in seen:
                continue
            seen.add(str(fact))
            if len(seen) > _MOST_BEYOND:
                return found
            leaves = free.resized(example.leaves, {**numbers, **settled, label: number})
            with suppress(DovetailError):
                found.append(recorder.record(pool, example, leaves, free.dims))
    return found


def _symbols(one: Recorded, free: FreeSizes) -> dict[Hashable, str]:
    """The symbol that each label became."""
    found: dict[Hashable, str] = {}
    for leaf, meta in zip(one.arguments, one.guard.inputs, strict=True):
        assert meta is not None, "inputs that are tensors are described"
        for dim in free.dims(leaf):
            size = meta.shape[dim]
            if isinstance(size, SizeExpr) and size.op == "symbol":
                found[free.labels[leaf, dim]] = str(size)
    return found


def _fixed(
    one: Recorded, numbers: Mapping[Hashable, int], symbols: Mapping[Hashable, str], example: Example
) -> tuple[set[Hashable], tuple[str, ...]]:
    """Labels that recording fixed, with the reason."""
    at = {symbol: numbers[label] for label, symbol in symbols.items()}
    fixed: set[Hashable] = set()
    notes: list[str] = []
    for label, symbol in symbols.items():
        broken = {number: _broken(one, {**at, symbol: number}) for number in _others(at[symbol])}
        held = [number for number, fact in broken.items() if fact is None]
        where = _where(label, one, symbol, example)
        if not held:
            fixed.add(label)
            notes.append(f"{where} is fixed to {at[symbol]}: the model relies on {broken[at[symbol] + 1]}")
        elif not _varies(one, at, symbol, held):
            fixed.add(label)
            fact = broken[2 * at[symbol]]
            notes.append(f"{where} is {at[symbol]} or near to it: the model relies on {fact}")
    return fixed, tuple(notes)


def _varies(one: Recorded, at: Mapping[str, Number], symbol: str, held: Sequence[int]) -> bool:
    """Whether sizes may be half as large again, or half as large, and not only a little larger or smaller, as where a
    rounded quotient of them is fixed. held: those near to the size for which the program is.
    """
    size = int(at[symbol])
    if 2 * size in held:
        return True
    far = (*range(2, size // 2 + 1), *range(size + size // 2, 8 * size + 1, max(size // 16, 1)))
    return any(_broken(one, {**at, symbol: number}) is None for number in far)


def _second(
    one: Recorded,
    numbers: Mapping[Hashable, int],
    symbols: Mapping[Hashable, str],
    free: FreeSizes,
    fixed: set[Hashable],
) -> dict[Hashable, int]:
    """Other numbers for the labels, as many as can be, with which the program can be called."""
    chosen = dict(numbers)
    for label in symbols:
        if label in fixed:
            continue
        least, greatest = free.ranges.get(label, (0, None))
        for number in _others(numbers[label]):
            at = {symbol: number if other == label else chosen[other] for other, symbol in symbols.items()}
            is_meant = number >= least and (greatest is None or number <= greatest)
            if is_meant and _broken(one, at) is None:
                chosen[label] = number
                break
    return chosen


def _others(number: int) -> list[int]:
    """Sizes near to a size, and twice as large."""
    return [other for other in (*(number + by for by in _STEPS), 2 * number) if other > 1]


def _broken(one: Recorded, at: Mapping[str, Number]) -> Scalar | None:
    """A fact that the recording relied on and that does not hold at these sizes."""
    return next((fact for fact in one.guard.facts if is_known(fact, at) and not holds(fact, at)), None)


def _where(label: Hashable, one: Recorded, symbol: str, example: Example) -> str:
    names = [
        f"dimension {dim} of {example.form.leaves[leaf].name}"
        for leaf, meta in zip(one.arguments, one.guard.inputs, strict=True)
        if meta is not None
        for dim, size in enumerate(meta.shape)
        if str(size) == symbol
    ]
    return f"{label!r} ({', '.join(names)})" if isinstance(label, str) else " and ".join(names)


def _within_ranges(one: Recorded, free: FreeSizes, symbols: Mapping[Hashable, str]) -> Recorded:
    facts = list(one.guard.facts)
    for label, (least, greatest) in free.ranges.items():
        symbol = SizeExpr("symbol", (symbols[label],))
        facts.append(SizeExpr("ge", (symbol, least)))
        if greatest is not None:
            facts.append(SizeExpr("le", (symbol, greatest)))
    return replace(one, guard=replace(one.guard, facts=tuple(facts)))


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
