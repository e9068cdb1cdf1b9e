"""The model that a program was frozen from: watched for changes.

A watched model is not kept alive. Watched are its tensors (those that it holds as plain attributes or closes over, too)
and which modules it consists of. What cannot be seen: a write through `.data` of a tensor that is kept elsewhere, a
write to memory that another library shares, and other Python values.

Cost of a look: O(tensors + modules), well below a microsecond for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.errors import BadWeights
from dovetail.torch_compat.autograd import version_of

_Seen = tuple[int, int, torch.Size, tuple[int, ...]]
_ATTRIBUTES = "__dict__"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module holds a tensor, as it was when the model was frozen."""

    dotted: str
    table: str
    key: str
    tensor: weakref.ref[torch.Tensor]
    seen: _Seen

    def now(self, module: torch.nn.Module) -> torch.Tensor | None:
        """What the module holds there."""
        attributes = module.__dict__
        table = attributes if self.table == _ATTRIBUTES else attributes.get(self.table, {})
        found = table.get(self.key)
        return found if isinstance(found, torch.Tensor) else None

    def has_changed(self, module: torch.nn.Module) -> bool:
        """Whether the module holds another tensor there, or other contents in it."""
        tensor = self.now(module)
        return tensor is None or self.tensor() is not tensor or _seen_of(tensor) != self.seen


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the model: its name, the modules in it, and the tensors that were read."""

    module: weakref.ref[torch.nn.Module]
    dotted: str
    children: tuple[tuple[str, Callable[[], torch.nn.Module | None]], ...]
    places: tuple[_Place, ...]

    def has_changed(self) -> bool:
        """Whether anything has changed; not when the module is gone."""
        module = self.module()
        if module is None:
            return False
        attributes = module.__dict__
        held = attributes["_modules"]
        if len(held) != len(self.children):
            return True
        for key, child in self.children:
            if held.get(key) is not child():
                return True
        for place in self.places:
            tensor: Any = place.tensor()
            is_there = tensor is not None and attributes.get(place.table, {}).get(place.key) is tensor
            if (not is_there or _seen_of(tensor) != place.seen) and place.has_changed(module):
                return True
        return False

    def changed(self) -> list[str]:
        """Dotted names of what has changed; none when the module is gone."""
        module = self.module()
        if module is None:
            return []
        return [*self.moved(module), *[place.dotted for place in self.places if place.has_changed(module)]]

    def moved(self, module: torch.nn.Module) -> list[str]:
        """Dotted names of modules that are others, or that were put in or taken out."""
        held = module.__dict__["_modules"]
        if len(held) == len(self.children) and all(held.get(key) is child() for key, child in self.children):
            return []
        before = dict(self.children)
        keys = [key for key in {**before, **held} if key not in before or held.get(key) is not before[key]()]
        return [f"{self.dotted}.{key}" if self.dotted else key for key in keys]


@dataclass(frozen=True, slots=True)
class _Lone:
    """A tensor that the model closes over, wherever that is."""

    dotted: str
    tensor: weakref.ref[torch.Tensor]
    seen: _Seen

    def has_changed(self) -> bool:
        """Whether it has other contents; not when it is gone."""
        tensor = self.tensor()
        return tensor is not None and _seen_of(tensor) != self.seen


class Originals:
    """Watches a model from which constants were taken."""

    def __init__(self, modules: Sequence[_Module], lone: Sequence[_Lone]) -> None:
        self._modules = tuple(modules)
        self._lone = tuple(lone)

    @staticmethod
    def of(
        model: torch.nn.Module, slots: Iterable[TensorSlot], names: Iterable[str], others: Mapping[str, torch.Tensor]
    ) -> Originals:
        """A watch of a model.

        names: dotted names of slots that are watched. others: tensors that no slot holds, by dotted name.
        """
        wanted = set(names)
        places: dict[int, list[_Place]] = {}
        for slot in slots:
            if slot.name in wanted:
                place = _Place(slot.name, slot.table, slot.key, *_watch(slot.read()))
                places.setdefault(id(slot.module), []).append(place)
        lone = dict(others)
        modules = list(model.named_modules())
        for _, module in modules:
            for key, value in module.__dict__.items():
                name = next((n for n, t in others.items() if t is value), None)
                if name is not None:
                    lone.pop(name, None)
                    places.setdefault(id(module), []).append(_Place(name, _ATTRIBUTES, key, *_watch(others[name])))
        watched = [_module(module, dotted, places.get(id(module), ())) for dotted, module in modules]
        return Originals(watched, [_Lone(name, *_watch(tensor)) for name, tensor in lone.items()])

    def changed(self) -> list[str]:
        """Dotted names of what has changed since it was looked at first."""
        found: list[str] = []
        for module in self._modules:
            if module.has_changed():
                found += module.changed()
        found += [lone.dotted for lone in self._lone if lone.has_changed()]
        return found

    def now(self) -> dict[str, torch.Tensor]:
        """What the model holds in place of the constants, by dotted name.

        Raises: BadWeights when one is gone, or when the model consists of other modules.
        """
        found: dict[str, torch.Tensor] = {}
        for watched in self._modules:
            module = watched.module()
            moved = watched.moved(module) if module is not None else []
            if moved:
                raise BadWeights(reason=f"{moved[0]} is another module now", hint="freeze the new model")
            for place in watched.places:
                tensor = None if module is None else place.now(module)
                if tensor is None:
                    raise BadWeights(reason=f"the model has no {place.dotted} any more", hint="freeze the new model")
                found[place.dotted] = tensor
        for lone in self._lone:
            tensor = lone.tensor()
            if tensor is not None:
                found[lone.dotted] = tensor
        return found

    def renewed(self) -> Originals:
        """A watch from now on."""
        lone = [(one.dotted, one.tensor()) for one in self._lone]
        return Originals(
            [_again(module) for module in self._modules],
            [_Lone(dotted, *_watch(tensor)) for dotted, tensor in lone if tensor is not None],
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is watched and still there, by dotted name."""
        for watched in self._modules:
            module = watched.module()
            for place in watched.places if module is not None else ():
                tensor = place.tensor()
                if tensor is not None:
                    yield place.dotted, tensor
        for lone in self._lone:
            tensor = lone.tensor()
            if tensor is not None:
                yield lone.dotted, tensor


def _module(module: torch.nn.Module, dotted: str, places: Sequence[_Place]) -> _Module:
    children = [(key, _nothing if c is None else weakref.ref(c)) for key, c in module.__dict__["_modules"].items()]
    return _Module(weakref.ref(module), dotted, tuple(children), tuple(places))


def _again(watched: _Module) -> _Module:
    module = watched.module()
    if module is None:
        return watched
    now = [(place, place.now(module)) for place in watched.places]
    places = [_Place(p.dotted, p.table, p.key, *_watch(tensor)) for p, tensor in now if tensor is not None]
    return _module(module, watched.dotted, places)


def _nothing() -> None:
    return None


def _watch(tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], _Seen]:
    return weakref.ref(tensor), _seen_of(tensor)


def _seen_of(tensor: torch.Tensor) -> _Seen:
    return (version_of(tensor), tensor.data_ptr(), tensor.shape, tensor.stride())
