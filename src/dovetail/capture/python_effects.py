"""Tensors of a recording that the code left in Python objects: in a list, a dictionary, an attribute, a variable.

They are stand-ins without numbers, and a compiled program would not put its own tensors there. So they are looked for
in what the code has changed, and the program is refused.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from dovetail.capture.module_state import KeptWhereRead, is_derived
from dovetail.errors import PythonSideEffect
from dovetail.reach.changes import ReadChange
from dovetail.reach.codes import names_of
from dovetail.reach.contents import in_cell
from dovetail.reach.libraries import is_library_class
from dovetail.reach.reads import Reads
from dovetail.reach.values import PLAIN, attributes_of, has_attributes
from dovetail.torch_compat.fakes import is_fake, writes_fake
from dovetail.torch_compat.traced_numbers import is_traced


def refuse_tensors_left(changes: Iterable[ReadChange], stand_ins: Iterable[Any], codes: Iterable[CodeType]) -> None:
    """Refuse a change that leaves a fake tensor somewhere. What only repeats the stand-ins themselves is none.

    codes: what ran. Raises: PythonSideEffect; from `KeptWhereRead` where code looks for such tensors there.
    """
    known = set(map(id, stand_ins))
    for change in changes:
        if id(change.new) not in known and _holds_fake(change.new) and not is_derived(change.new, known):
            is_read = isinstance(change.new, dict) or (change.name and any(_reads(code, change.name) for code in codes))
            raise PythonSideEffect(what=f"left a tensor in {change.label}") from KeptWhereRead() if is_read else None
        if _leads_to(change.new, _is_text_of_fake):
            raise PythonSideEffect(what=f"left the text of a tensor's numbers in {change.label}")


def _reads(code: CodeType, name: str) -> bool:
    """Whether code reads an attribute, or a variable, of a name."""
    return any(found.argval == name and found.opname.startswith("LOAD_") for found in dis.get_instructions(code))


class ChangesInBackward(Exception):
    """Code that runs in backward changes Python objects: in each backward that runs, not once for each recording."""


def refuse_changes_of_backward(changes: Sequence[ReadChange]) -> None:
    """Refuse changes that backward has made. Raises: PythonSideEffect from ChangesInBackward."""
    if changes:
        raise PythonSideEffect(what=f"changed {changes[0].label} in its backward") from ChangesInBackward()


def refuse_numbers_left(changes: Iterable[ReadChange]) -> None:
    """Refuse a change that leaves a number which the program computes. Raises: PythonSideEffect."""
    for change in changes:
        if _leads_to(change.new, _is_symbolic):
            raise PythonSideEffect(what=f"left a number that it computes in {change.label}")


def refuse_attributes_left(reads: Reads, stand_ins: Sequence[Any], before: Sequence[Collection[str]]) -> None:
    """Refuse attributes that code has written on tensors, which no call would do again. Raises: PythonSideEffect.

    before: names of those that inputs had; what only the recording has written there is nobody's.
    """
    named = frozenset[str]().union(*(names_of(code).attributes for code in reads.codes))
    for stand_in, known in zip(stand_ins, before, strict=False):
        for name in sorted((attributes_of(stand_in).keys() - known) & named):
            raise PythonSideEffect(what=f"set the attribute {name!r} of a tensor")
    for item in [x for x in reads.met.values() if type(x) in (torch.Tensor, torch.nn.Parameter)]:
        left = [name for name, value in attributes_of(item).items() if name in named and _holds_fake(value)]
        for name in left:
            delattr(item, name)
        if left:
            raise PythonSideEffect(what=f"set the attribute {left[0]!r} of a tensor")


def holds_traced(value: Any) -> bool:
    """Whether a value is a traced number, or leads to one."""
    return _leads_to(value, is_traced)


def _holds_fake(value: Any) -> bool:
    return _leads_to(value, lambda item: isinstance(item, torch.Tensor) and is_fake(item))


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_text_of_fake(value: Any) -> bool:
    return isinstance(value, str) and writes_fake(value)


def _leads_to(value: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Whether a value is such a thing, or leads to one through containers, the user's objects and closures."""
    left, seen = [value], set[int]()
    while left:
        item = left.pop()
        if is_meant(item):
            return True
        if type(item) in PLAIN or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            continue
        if isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | deque | set | frozenset):
            left += item
        elif isinstance(item, FunctionType):
            left += map(in_cell, item.__closure__ or ())
        elif isinstance(item, MethodType):
            left.append(item.__self__)
        elif not is_library_class(type(item)) and has_attributes(type(item)) and not isinstance(item, torch.nn.Module):
            left += attributes_of(item).values()
    return False
