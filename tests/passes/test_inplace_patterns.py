"""Mutation patterns, re-inplaced: same results, same memory, and no more copies than are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from dovetail.passes import plan_inplace, reinplace, verify_inplace
from tests.passes.patterns import PATTERNS
from tests.passes.patterns.copies import CountCopies
from tests.passes.patterns.pattern import CONTIGUOUS, Pattern
from tests.passes.patterns.trace import traced
from tests.rotation import rotated

CASES = [(pattern, way) for pattern in PATTERNS for way in pattern.ways]


def _samples(pattern: Pattern) -> tuple[Any, ...]:
    torch.manual_seed(3)
    return pattern.inputs()


def _run(function: Any, pattern: Pattern) -> tuple[list[Tensor], list[Any], Tensor]:
    """Outputs, inputs as they are left, state of the generator."""
    samples = _samples(pattern)
    outputs = pytree.tree_leaves(function(*samples))
    outputs = [output for output in outputs if isinstance(output, Tensor)]
    left = [sample for i, sample in enumerate(samples) if i not in pattern.donate]
    return outputs, left, torch.get_rng_state()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    a, b = (t.resolve_conj().resolve_neg().contiguous().view(-1) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _compare(actual: Any, expected: Any, *, strides: bool) -> None:
    for what, mine, theirs in zip(("output", "input", "generator"), actual, expected, strict=True):
        pairs = zip([mine] if what == "generator" else mine, [theirs] if what == "generator" else theirs, strict=True)
        for number, (a, b) in enumerate(pairs):
            assert _same_bits(a, b), f"{what} {number} differs"
            assert a.stride() == b.stride() or not strides, f"{what} {number} has other strides"


def _touches(function: Any, pattern: Pattern) -> set[tuple[int, int]]:
    """(output, other): which other outputs, or inputs as ~number, change when an output is written."""
    found = set()
    outputs, left, _ = _run(function, pattern)
    for number in range(len(outputs)):
        outputs, left, _ = _run(function, pattern)
        before = [tensor.clone() for tensor in (*outputs, *left)]
        if torch._debug_has_internal_overlap(outputs[number]) == 1:
            continue
        outputs[number].fill_(77)
        numbers = [*range(len(outputs)), *(~i for i in range(len(left)))]
        for other, tensor, old in zip(numbers, (*outputs, *left), before, strict=True):
            if other != number and not torch.equal(tensor, old):
                found.add((number, other))
    return found


def full_copies(pattern: Pattern, functional: fx.GraphModule, inplace: fx.GraphModule) -> int:
    """Copies of the size of the largest memory that the pattern writes, counted while it runs."""
    samples = _samples(pattern)
    with CountCopies() as eager:
        pattern.program(*samples)
    samples = _samples(pattern)
    with CountCopies() as counted:
        inplace(*samples)
    return round(counted.copied_bytes / (eager.largest_write or eager.largest))


@pytest.mark.parametrize(("pattern", "way"), rotated(CASES, 4), ids=lambda part: getattr(part, "name", part))
def test_pattern_works_in_place(pattern: Pattern, way: str) -> None:
    functional = traced(pattern, way)
    text = functional.code
    inplace = reinplace(functional, *_samples(pattern), donate=pattern.donate)
    assert functional.code == text, "the graph that is given is not edited"
    verify_inplace(functional, inplace, *_samples(pattern), donate=pattern.donate)

    actual = _run(inplace, pattern)
    _compare(actual, _run(functional, pattern), strides=True)
    if pattern.weakness == CONTIGUOUS:  # products over the copies in the graph round as the processor's library likes
        torch.testing.assert_close(actual[:2], _run(pattern.program, pattern)[:2])
    else:
        _compare(actual, _run(pattern.program, pattern), strides=False)
    touched = _touches(inplace, pattern)
    assert touched == _touches(functional, pattern)
    assert touched <= _touches(pattern.program, pattern)

    report = plan_inplace(functional, *_samples(pattern), donate=pattern.donate)
    counted = full_copies(pattern, functional, inplace)
    assert counted == pattern.reached(way), report.explain()
    if counted == pattern.copies:
        assert (report.missed_bytes > 0) == (way in pattern.unproved), report.explain()


def test_copies_that_are_not_needed_are_the_exception() -> None:
    assert len(PATTERNS) >= 65
    names = [pattern.name for pattern in PATTERNS]
    assert len(set(names)) == len(names)
    behind = [(pattern, way) for pattern, way in CASES if pattern.reached(way) > pattern.copies]
    assert len([case for case in behind if case[1] == "mutations"]) <= 0.05 * len(PATTERNS)
