"""Reads without the slots that others look after."""

from __future__ import annotations

import copy
from collections.abc import Set as AbstractSet
from typing import Any

from dovetail.reach.libraries import is_ours
from dovetail.reach.reads import Reads
from dovetail.reach.slots import NamesOf
from dovetail.reach.values import attributes_of, has_attributes, is_a


def without(reads: Reads, known: AbstractSet[tuple[int, str]]) -> Reads:
    """Reads without slots that others compare, and without objects that nothing else is read of.

    known: the identity of what holds a slot (a dictionary, a class, a cell, an object with slots) and its name, "" for
    every name.
    """
    if not known:
        return reads

    def is_left(holder: int, name: str, value: Any) -> bool:
        return not ((holder, name) in known or (holder, "") in known or is_ours(value))

    left = copy.copy(reads)
    left.attributes = {
        (key, name): value
        for (key, name), value in reads.attributes.items()
        if is_left(_holder_of(reads.owners[key]), name, value)
    }
    left.descriptors = {key: place for key, place in reads.descriptors.items() if is_left(*key, place[-1])}
    left.namespaces = {key: place for key, place in reads.namespaces.items() if is_left(*key, place[-1])}
    left.class_attributes = {key: place for key, place in reads.class_attributes.items() if is_left(*key, place[-1])}
    left.cells = {key: place for key, place in reads.cells.items() if is_left(key, place[1], place[-1])}
    left.asked = {
        function: answer
        for function, answer in reads.asked.items()
        if not (isinstance(function, NamesOf) and (_holder_of(function.item), "") in known)
    }
    used = {key for key, _ in (*left.attributes, *left.descriptors)}
    left.owners = {key: owner for key, owner in reads.owners.items() if key in used}
    left.roots = []
    return left


def _holder_of(owner: Any) -> int:
    return id(attributes_of(owner)) if has_attributes(type(owner)) and not is_a(owner, type) else id(owner)
