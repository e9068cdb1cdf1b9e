"""The tensors of modules as inputs, and modules held still while their code runs on fakes.

While a module is recorded, its parameters and buffers are replaced by what the recording sees; afterwards every module
is put back exactly as it was, whatever happened. A module that changed itself (a new attribute, a buffer bound to
another tensor) did something that a compiled program would not repeat, and is refused.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import PythonSideEffect, UnsupportedTensor
from dovetail.ir.signature import Buffer, InputRole, Parameter


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One place where a module holds a tensor. name: dotted, as in `named_parameters`."""

    module: torch.nn.Module
    table: str
    key: str
    name: str

    @property
    def role(self) -> InputRole:
        """What an input that comes from here is."""
        return Parameter(self.name) if self.table == "_parameters" else Buffer(self.name)

    def read(self) -> Any:
        """The tensor that is there now; None when there is none any more."""
        return self.module.__dict__[self.table].get(self.key)

    def place(self, tensor: Any) -> None:
        """Put a tensor there."""
        self.module.__dict__[self.table][self.key] = tensor


class KeptWhereRead(Exception):
    """Why code is refused: it keeps a tensor where it may look for it first, so perhaps it does so once."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What code did to a module, in words."""

    what: str
    is_of_buffer: bool = False


def tensor_slots(modules: Sequence[tuple[str, torch.nn.Module]]) -> list[TensorSlot]:
    """Every parameter and buffer of the named modules and their children; a shared module is listed once.

    Those on the meta device are left out: they hold the place of what `torch.func.functional_call` puts there.
    Raises: UnsupportedTensor for a lazy parameter, whose shape is not known before the module ran.
    """
    slots: list[TensorSlot] = []
    seen: set[int] = set()
    for root_name, root in modules:
        for path, module in root.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            prefix = ".".join(part for part in (root_name, path) if part)
            if isinstance(module, torch.jit.ScriptModule):
                hint = "compile the module that it was made from, or leave this part uncompiled"
                raise UnsupportedTensor(name=prefix or "the module", kind="a module of TorchScript", hint=hint)
            for table in ("_parameters", "_buffers"):
                for key, tensor in module.__dict__.get(table, {}).items():
                    if tensor is None or tensor.device.type == "meta":
                        continue
                    name = f"{prefix}.{key}" if prefix else key
                    if isinstance(tensor, torch.nn.UninitializedParameter | torch.nn.UninitializedBuffer):
                        hint = "call the module once before it is compiled"
                        raise UnsupportedTensor(name=name, kind="not initialized yet", hint=hint)
                    slots.append(TensorSlot(module, table, key, name))
    return slots


@contextlib.contextmanager
def replaced_tensors(
    slots: Sequence[TensorSlot], stand_ins: Sequence[Any], *, leaves_attributes: bool = False
) -> Iterator[None]:
    """While active, each slot holds its stand-in. Afterwards the modules are as before.

    leaves_attributes: attributes that the code has set and that are no tensors or modules stay set; the caller puts
    them back. Raises: PythonSideEffect, after putting everything back, when the code that ran changed a module.
    """
    modules = {id(slot.module): slot.module for slot in slots}
    for root in list(modules.values()):
        modules.update({id(m): m for m in root.modules()})
    before = {key: _contents(module) for key, module in modules.items()}
    originals = [slot.read() for slot in slots]
    for slot, stand_in in zip(slots, stand_ins, strict=True):
        slot.place(stand_in)
    during = {key: _contents(module) for key, module in modules.items()}
    seen = {id(stand_in) for stand_in in stand_ins}
    changed, left = list[_Change](), dict[int, dict[str, Any]]()
    try:
        yield
        after = {key: _contents(module) for key, module in modules.items()}
        if leaves_attributes:
            left = {key: _set_attributes(during[key], held, seen) for key, held in after.items()}
        for key, module in modules.items():
            changed += _differences({**during[key], **left.get(key, {})}, after[key], module, seen)
    finally:
        for key, module in modules.items():
            _restore(module, before[key])
            module.__dict__.update({} if changed else left.get(key, {}))
        for slot, original in zip(slots, originals, strict=True):
            slot.place(original)
    if changed:
        raise PythonSideEffect(what=changed[0].what) from KeptWhereRead() if changed[0].is_of_buffer else None


_NOTHING = object()
_TABLES = ("_parameters", "_buffers", "_modules")


def _contents(module: torch.nn.Module) -> dict[str, Any]:
    held = dict(module.__dict__)
    return {name: dict(value) if name in _TABLES else value for name, value in held.items()}


def _differences(
    before: dict[str, Any], after: dict[str, Any], module: torch.nn.Module, stand_ins: set[int]
) -> Iterator[_Change]:
    kind = type(module).__name__
    for name in {**before, **after}:
        if name in _TABLES:
            old, new = before.get(name, {}), after.get(name, {})
            for key in {**old, **new}:
                if old.get(key) is not new.get(key):
                    yield _Change(f"bound {kind}.{key} to another object", is_of_buffer=name == "_buffers")
        elif name not in after:
            yield _Change(f"deleted {kind}.{name}")
        elif not (_unchanged(before.get(name, _NOTHING), after[name]) or is_derived(after[name], stand_ins)):
            yield _Change(f"set {kind}.{name}")


def _set_attributes(before: dict[str, Any], after: dict[str, Any], stand_ins: set[int]) -> dict[str, Any]:
    """What attributes hold that have been set, but for those that only repeat the stand-ins."""
    return {
        name: value
        for name, value in after.items()
        if name not in _TABLES and before.get(name, _NOTHING) is not value and not is_derived(value, stand_ins)
    }


def _unchanged(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and isinstance(old, bool | int | float | str) and old == new)


def is_derived(value: Any, stand_ins: set[int]) -> bool:
    """Whether a value only repeats the stand-ins (a recurrent module's list of its weights)."""
    if not isinstance(value, list | tuple):
        return False
    targets = [item() if isinstance(item, weakref.ref) else item for item in value]
    return all(target is None or id(target) in stand_ins for target in targets)


def _restore(module: torch.nn.Module, contents: dict[str, Any]) -> None:
    for name in list(module.__dict__):
        if name not in contents:
            del module.__dict__[name]
    for name, value in contents.items():
        if name in _TABLES:
            table = module.__dict__[name]
            table.clear()
            table.update(value)
        elif module.__dict__.get(name, _NOTHING) is not value:
            module.__dict__[name] = value
