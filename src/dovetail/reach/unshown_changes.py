"""Changes of attributes that no event has shown: they count as reads of what was there before.

vars(o)["loss"] = loss        o.__dict__.update(loss=loss)        object.__setattr__(o, "loss", loss)
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

from dovetail.reach.codes import names_of
from dovetail.reach.contents import MISSING
from dovetail.reach.reads import Reads
from dovetail.reach.values import mro_of, own_of

_SETTING = frozenset(("__setattr__", "__delattr__"))
_REPORTED = frozenset(("__init__", "__new__", *_SETTING))  # of new objects; shown by other events


def note_unshown(reads: Reads) -> None:
    """Let attributes that have changed unseen be among the reads. Call it once the code has run.

    Where a method calls `object.__setattr__`, all attributes of its object are: it may have left them as they were.
    """
    for kind, name in reads.unshown.new_in_classes():
        reads.class_attributes.setdefault((id(kind), name), (kind, MISSING))
    for known, name in reads.unshown.new_variables():
        reads.labels.setdefault(id(known), str(known.get("__name__")))
        reads.namespaces.setdefault((id(known), name), (known, MISSING))
    codes = [code for code in reads.codes if code.co_name not in _REPORTED and _SETTING & names_of(code).attributes]
    kinds = {kind for kind in reads.unshown.kinds if codes and _has_method(kind, codes)}
    for item, name, old in reads.unshown.attributes(kinds):
        if (id(item), name) not in reads.attributes:
            reads.owners[id(item)], reads.attributes[id(item), name] = item, old
            reads.meet(old, item)
    for item, descriptor, old in reads.unshown.slots(kinds):
        if (id(item), descriptor.__name__) not in reads.descriptors:
            reads.owners[id(item)] = item
            reads.descriptors[id(item), descriptor.__name__] = (item, descriptor, old)
            reads.meet(old, item)


def _has_method(kind: type, codes: list[CodeType]) -> bool:
    """Whether a class has a method with such code."""
    found: list[Any] = [own_of(owner).get(code.co_name) for owner in mro_of(kind) for code in codes]
    return any(type(method) is FunctionType and method.__code__ in codes for method in found)
