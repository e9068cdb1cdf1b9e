"""What the code of a recorded call has changed among what it read, and how it is put back."""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dovetail.reach.contents import MISSING, Snapshot, base_of, in_cell
from dovetail.reach.libraries import is_library_class, is_library_module, is_ours
from dovetail.reach.reads import Reads
from dovetail.reach.slots import in_slot
from dovetail.reach.values import (
    LOOKED_INTO,
    attributes_of,
    dict_methods,
    has_attributes,
    is_a,
    is_same,
    kind_of,
    name_of,
)

_RESTORED = (dict, list, deque, set, bytearray, np.ndarray, io.StringIO, io.BytesIO)


@dataclass(frozen=True, slots=True)
class ReadChange:
    """A slot that holds something else than when it was read first; MISSING: nothing.

    undo: puts it back. name: of the attribute, or the variable.
    """

    label: str
    old: Any
    new: Any
    undo: Callable[[], None]
    name: str = ""


def changes_of(reads: Reads, is_made: Callable[[Any], bool], is_known: Callable[[Any], bool]) -> Iterator[ReadChange]:
    """What is not as it was when it was read first, but for what the call made itself and what others look after.

    is_made: asked for objects, namespaces, classes, cells. is_known: for objects, classes, cells, and for containers,
    which count by what they hold; of a namespace others look after some names, which are none of these reads. The
    contents of tensors, and what functions remember, are not looked at.
    """

    def is_left_out(item: Any) -> bool:
        return is_made(item) or is_known(item)

    for (key, name), old in reads.attributes.items():
        owner = reads.owners[key]
        is_memo = (key, name) not in reads.set_by_users and _is_memo(owner, name, old)
        table = None if is_left_out(owner) or is_memo else _table_of(owner)
        if table is not None:
            yield from _of_entry(table, name, old, f"{name_of(type(owner))}.{name}")
    for (_, name), (known, old) in reads.namespaces.items():
        if not (is_made(known) or is_library_module(known.get("__name__"))):
            yield from _of_entry(known, name, old, f"{reads.labels[id(known)]}.{name}".lstrip("."))
    for (_, name), (kind, old) in reads.class_attributes.items():
        now = type.__getattribute__(kind, "__dict__").get(name, MISSING)
        if not (_is_same(old, now) or is_left_out(kind) or is_library_class(kind)):
            put = (
                partial(type.__delattr__, kind, name) if old is MISSING else partial(type.__setattr__, kind, name, old)
            )
            yield ReadChange(f"{name_of(kind)}.{name}", old, now, put)
    for owner, descriptor, old in reads.descriptors.values():
        now = in_slot(owner, descriptor)
        if not (_is_same(old, now) or is_left_out(owner) or _is_memo_in_slot(owner, old)):
            put = partial(descriptor.__delete__, owner) if old is MISSING else partial(descriptor.__set__, owner, old)
            yield ReadChange(f"{name_of(type(owner))}.{descriptor.__name__}", old, now, put, descriptor.__name__)
    for cell, name, old in reads.cells.values():
        now = in_cell(cell)
        if not (_is_same(old, now) or is_left_out(cell)):
            put = (
                partial(delattr, cell, "cell_contents")
                if old is MISSING
                else partial(setattr, cell, "cell_contents", old)
            )
            yield ReadChange(f"variable {name}", old, now, put, name)
    for item in reads.snapshot:
        holder, was_tracked = reads.holders[id(item)]  # an old dictionary looks young once it holds something
        made = (holder is not None and is_made(holder)) or (was_tracked and is_made(item))
        if is_a(item, _RESTORED) and not (made or is_known(item) or item is sys.modules):
            yield from _of_container(item, reads.snapshot)


def _is_librarys(owner: Any) -> bool:
    """Whether an object is a library's own, which remembers for itself: an operator that was looked up, say."""
    return is_a(owner, type) or (is_library_class(type(owner)) and kind_of(type(owner)) not in LOOKED_INTO)


def _is_memo(owner: Any, name: str, old: Any) -> bool:
    """Whether an object of a library's remembers something in an attribute, for itself, by the looks of it."""
    return _is_librarys(owner) and (is_a(owner, type) or old is MISSING or old is None or name.startswith("_"))


def _is_memo_in_slot(owner: Any, old: Any) -> bool:
    """Whether an object of a library's fills a slot of its own, to find there what it has worked out: a path's text."""
    return old is MISSING and _is_librarys(owner)


def _is_same(old: Any, now: Any) -> bool:
    """Whether a slot holds what it held, or something of this package's own for the time of the recording."""
    return is_same(old, now) or is_ours(old) or is_ours(now)


def _table_of(owner: Any) -> dict[str, Any] | None:
    """The attributes of an object; those of classes are slots of their own."""
    return attributes_of(owner) if has_attributes(type(owner)) and not is_a(owner, type) else None


def _of_entry(table: dict[str, Any], name: str, old: Any, label: str) -> Iterator[ReadChange]:
    now = dict.get(table, name, MISSING)
    if not _is_same(old, now):
        put = partial(dict.pop, table, name, None) if old is MISSING else partial(dict.__setitem__, table, name, old)
        yield ReadChange(label, old, now, put, name)


def _of_container(item: Any, snapshot: Snapshot) -> Iterator[ReadChange]:
    if not snapshot.is_as_before(item):
        yield ReadChange(f"a {name_of(type(item))}", item, item, partial(_fill, item, snapshot))


def _fill(item: Any, snapshot: Snapshot) -> None:
    """Let a container hold what it held."""
    parts, held = snapshot.held(item)
    tag: Any = None if parts is None else parts[0]
    base: Any = base_of(item)
    if is_a(item, np.ndarray):
        content = tag[-1]
        numbers = np.array(held, dtype=object) if content is None else np.frombuffer(content, item.dtype)
        np.ndarray.__setitem__(item, ..., numbers.reshape(item.shape))
    elif is_a(item, bytearray):
        item[:] = tag
    elif is_a(item, io.IOBase):
        item.seek(0)
        item.truncate()
        item.write(tag[1])
        item.seek(tag[0])
    elif is_a(item, set):
        set.clear(item)
        set.update(item, snapshot.elements(item))
    elif is_a(item, dict):
        methods = dict_methods(item)
        methods.clear(item)
        for key, value in zip(held[: len(held) // 2], held[len(held) // 2 :], strict=True):
            methods.__setitem__(item, key, value)
    else:
        base.clear(item)
        base.extend(item, held)
