"""Words of memory that show whether a model holds the tensors that it held: where its modules are, and the versions of
the dictionaries in which they hold each other and their tensors.

A dictionary with another version is looked into; what else it holds does not count. Nothing of the model is kept alive.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.execute.watch import Watch
from dovetail.reach.memory_words import Check, NotInWords, WordList
from dovetail.torch_compat.guards import version_of_dict

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Table:
    """What a dictionary of a module holds: keys, each with a weak reference, or with what gives None.

    name: of the attribute that is the dictionary; "" for that of the attributes themselves. is_all: nothing else.
    """

    name: str
    items: tuple[tuple[str, Callable[[], Any]], ...]
    is_all: bool = False


Held: TypeAlias = "tuple[weakref.ref[torch.nn.Module], tuple[Table, ...]]"
"""A module with its tables, that of the attributes first."""


def watched(
    modules: Iterable[Held], lone: Iterable[weakref.ref[torch.Tensor]], watch: Watch
) -> Callable[[], bool] | None:
    """What tells whether modules hold what they hold now, and tensors are as they are; None where no words show it.

    lone: tensors that no module holds.
    """
    tensors = dict[int, torch.Tensor]()
    try:
        words = WordList()
        for reference, tables in modules:
            tensors.update(_put_module(words, reference, tables))
        for one in lone:
            tensor = one()
            if tensor is None or words.add_reference(one, tensor) is None:
                return None
            tensors[id(tensor)] = tensor
    except NotInWords:
        return None
    if any(x.layout is not torch.strided or type(x) not in _PLAIN for x in tensors.values()):
        return None
    pairs, checks = words.taken()
    look = watch(pairs, list(tensors.values()))
    return None if look is None else _asking(look, pairs, checks)


def _asking(look: Callable[[int], Any], pairs: array[int], checks: Mapping[int, Check]) -> Callable[[], bool]:
    def is_as_before() -> bool:
        found = look(0)
        return found is True or is_as_good(found)

    def is_as_good(found: Any) -> bool:
        while found is not True:
            check = checks.get(found)
            word = None if check is None else check()
            if word is None:
                return False
            pairs[2 * found + 1] = word
            found = look(found + 1)
        return True

    return is_as_before


def _put_module(
    words: WordList, reference: weakref.ref[torch.nn.Module], tables: Sequence[Table]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Add the words of a module. Yields the tensors that it holds."""
    module = reference()
    if module is None or words.add_reference(reference, module) is None:
        raise NotInWords
    attributes = module.__dict__
    words.add_table(module, attributes)
    kept = {table.name: id(attributes.get(table.name)) for table in tables if table.name}
    for table in tables:
        held = attributes[table.name] if table.name else attributes
        words.add_version(held, _check(reference, table, {} if table.name else kept))
        for key, item in table.items:
            found = held.get(key)
            if found is not item():
                raise NotInWords
            if isinstance(found, torch.Tensor):
                yield id(found), found


def _check(reference: weakref.ref[torch.nn.Module], table: Table, kept: Mapping[str, int]) -> Check:
    """What looks into a dictionary that has changed. kept: identities of others that it holds."""

    def check() -> int | None:
        module = reference()
        if module is None:
            return None
        held: Any = module.__dict__[table.name] if table.name else module.__dict__
        if any(id(held.get(key)) != number for key, number in kept.items()):
            return None
        if table.is_all and len(held) != len(table.items):
            return None
        for key, item in table.items:
            found = held.get(key)
            if found is not item() or (found is None and isinstance(item, weakref.ref)):
                return None
        assert version_of_dict is not None, "there are words"
        return version_of_dict(held)

    return check
