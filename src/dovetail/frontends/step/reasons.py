"""Why a call does not fit a program, in the words of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.record import difference
from dovetail.frontends.step.variant import Variant, state_of
from dovetail.frontends.structure import Structure


def what_differs(variant: Variant, reachable: ReachableState, leaves: Sequence[Any], structure: Structure) -> str:
    """The first thing that keeps a call, with what can be reached now, from a variant."""
    told = variant.arguments.difference(leaves, structure)
    if told:
        return told
    differences = difference(variant.record, reachable.record(variant.lifted))
    if differences:
        first = differences[0]
        return f"{first.label} changed: {_short(first.old)} -> {_short(first.new)}"
    question = variant.answered_otherwise(leaves)
    if question:
        return f"a check had another outcome: {question}"
    read = variant.reads.why()
    if read:
        return read
    state = state_of(reachable, variant)
    return "a tensor is gone" if state is None else variant.kinds.difference(state, variant.given(leaves))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
