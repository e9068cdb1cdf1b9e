"""The model that a program was frozen from: watched for changes.

A watched model is not kept alive. The checks cover its tensors (also plain attributes and closed-over ones) and the
modules it consists of. Not noticed: a write through `.data` of a tensor that is kept elsewhere, a write to memory that
another library shares, and other Python values.

Cost of a check: O(tensors + modules), some tenths of a microsecond for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.deferred import deferred
from dovetail.errors import BadWeights
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.guards import SameTensors

if TYPE_CHECKING:
    from dovetail.execute.watch import Watch
    from dovetail.frontends.freezing import model_words
    from dovetail.frontends.freezing.model_words import Table
else:
    model_words = deferred("dovetail.frontends.freezing.model_words")

_Seen = tuple[int, int, torch.Size, tuple[int, ...]]
_ATTRIBUTES = "__dict__"
_MOST_MODES = 4
_MOST_WATCHES = 4  # then what holds tensors changes too often, without another tensor


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
        if not all(_holds(held, key, child) for key, child in self.children):
            return True
        for place in self.places:
            tensor: Any = place.tensor()
            held_now = attributes.get(place.table)
            is_there = tensor is not None and held_now is not None and held_now.get(place.key) is tensor
            if (not is_there or _is_other(tensor, place.seen)) and place.has_changed(module):
                return True
        return False

    def changed(self) -> list[str]:
        """Dotted names of what has changed; none when the module is gone."""
        module = self.module()
        if module is None:
            return []
        return [*self.moved(module), *[place.dotted for place in self.places if place.has_changed(module)]]

    def tables(self) -> tuple[Table, ...]:
        """What its dictionaries hold: see `model_words`."""
        found: dict[str, list[tuple[str, Callable[[], Any]]]] = {"": []}
        for place in self.places:
            found.setdefault("" if place.table == _ATTRIBUTES else place.table, []).append((place.key, place.tensor))
        tables = [model_words.Table(name, tuple(items)) for name, items in found.items()]
        return (*tables, model_words.Table("_modules", self.children, is_all=True))

    def moved(self, module: torch.nn.Module) -> list[str]:
        """Dotted names of modules that are others, or that were put in or taken out."""
        held = module.__dict__["_modules"]
        before = dict(self.children)
        keys = [key for key in {**before, **held} if key not in before or not _holds(held, key, before[key])]
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


def _cannot_tell() -> bool:
    return False


class _LookWriter:
    """Writes a function that tells fast that nothing has changed. It gives False where it cannot tell.

    For one linear layer:

        def look():
            m = r0()
            if m is None: return False
            d = m.__dict__
            c = d['_modules']
            if len(c) != 0: return False
            t0 = d['_parameters'].get('weight')
            if t0 is None or r1() is not t0 or t0._version != 3 or t0.data_ptr() != 94: return False
            return sure0(t0) or same0([t0])
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._objects: list[Any] = []
        self._names: dict[int, str] = {}  # of tensors, by identity: tied ones are compared once

    def module(self, watched: _Module) -> None:
        """Look at a module, and at the tensors in it."""
        self._lines += [f"m = {self._name(watched.module)}()", "if m is None: return False", "d = m.__dict__"]
        self._lines += ["c = d['_modules']", f"if len(c) != {len(watched.children)}: return False"]
        for key, child in watched.children:
            other = "c" if child is _nothing else "None"  # what is there where the module is gone
            self._lines.append(f"n = c.get({key!r}, {other})")
            self._lines.append(f"if n is {other} or n is not {self._name(child)}(): return False")
        for place in watched.places:
            table = "d" if place.table == _ATTRIBUTES else f"d[{place.table!r}]"
            self._tensor(f"{table}.get({place.key!r})", place, f"{self._name(place.tensor)}() is not ")

    def lone(self, watched: _Lone) -> None:
        """Look at a tensor that no module holds."""
        self._tensor(f"{self._name(watched.tensor)}()", watched)

    def written(self, known: Sequence[SameTensors]) -> Callable[[], bool]:
        """The function. known: what tells the sizes, strides, classes and so on of the tensors, one for each mode."""
        tensors = ", ".join(self._names.values())
        answers = " or ".join([f"sure{number}({tensors}) or same{number}([{tensors}])" for number in range(len(known))])
        text = "\n    ".join(["def look():", *self._lines, f"return {answers if tensors else True}"])
        namespace: dict[str, Any] = {f"r{number}": found for number, found in enumerate(self._objects)}
        namespace |= {f"same{number}": same.are for number, same in enumerate(known)}
        namespace |= {f"sure{number}": same.surely_are for number, same in enumerate(known)}
        exec(compile(text, "<dovetail look at a frozen model>", "exec"), namespace)
        look: Callable[[], bool] = namespace["look"]
        return look

    def _name(self, found: object) -> str:
        self._objects.append(found)
        return f"r{len(self._objects) - 1}"

    def _tensor(self, text: str, watched: _Place | _Lone, is_other: str = "") -> None:
        version, address, *_ = watched.seen
        tensor = watched.tensor()
        name = f"t{len(self._names)}"
        parts = [f"{name} is None"]
        if is_other:
            parts.append(f"{is_other}{name}")
        if id(tensor) not in self._names:
            counted = tensor is not None and not tensor.is_inference()
            parts.append(f"{name}._version != {version}" if counted else f"not {name}.is_inference()")
            parts.append(f"{name}.data_ptr() != {address}")
        self._names.setdefault(id(tensor), name)
        self._lines += [f"{name} = {text}", f"if {' or '.join(parts)}: return False"]


class Originals:
    """Watches a model from which constants were taken."""

    def __init__(self, modules: Sequence[_Module], lone: Sequence[_Lone], watch: Watch | None = None) -> None:
        """watch: see `execute.watch`."""
        self._modules = tuple(modules)
        self._lone = tuple(lone)
        self._watch, self._watches = watch, 0
        self._known: tuple[SameTensors, ...] = ()
        self._storages: frozenset[int] | None = None  # of what is watched, while that is as before
        # Whether nothing has changed; False also where only `changed` can tell.
        self.is_as_before: Callable[[], bool] = _cannot_tell

    @staticmethod
    def of(
        model: torch.nn.Module,
        slots: Iterable[TensorSlot],
        names: Iterable[str],
        others: Mapping[str, torch.Tensor],
        watch: Watch | None,
    ) -> Originals:
        """A watch of a model.

        names: dotted names of slots that are watched. others: tensors that no slot holds, by dotted name. watch: see
        `execute.watch`.
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
        return Originals(watched, [_Lone(name, *_watch(tensor)) for name, tensor in lone.items()], watch)

    def changed(self) -> list[str]:
        """Dotted names of what has changed since it was looked at first."""
        if self.is_as_before():
            return []
        self._storages = None
        found = self._changed()
        if not found:
            self._look_fast_from_now_on()
        return found

    def _look_fast_from_now_on(self) -> None:
        """Something is gone for ever, or this is the first call in its mode of autograd, autocast and so on."""
        modules = tuple([module for module in self._modules if module.module() is not None])
        lone = tuple([one for one in self._lone if one.tensor() is not None])
        if (len(modules), len(lone)) != (len(self._modules), len(self._lone)):
            self._modules, self._lone, self._known = modules, lone, ()
        if self._watch is not None and self._watches < _MOST_WATCHES:
            self._watches += 1
            held = [(module.module, module.tables()) for module in modules]
            made = model_words.watched(held, [one.tensor for one in lone], self._watch)
            if made is not None:
                self.is_as_before = made
                return
        if len(self._known) == _MOST_MODES:
            return
        tensors = list({id(tensor): tensor for _, tensor in self.tensors()}.values())
        if tensors:
            self._known = (SameTensors(tensors), *self._known)
        writer = _LookWriter()
        for module in self._modules:
            writer.module(module)
        for one in self._lone:
            writer.lone(one)
        self.is_as_before = writer.written(self._known)

    def _changed(self) -> list[str]:
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
                    reason = f"the model has no {place.dotted} any more"
                    reason = f"the module that had {place.dotted} is gone" if module is None else reason
                    raise BadWeights(reason=reason, hint="freeze the new model")
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
            self._watch,
        )

    def may_share(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of these may share memory with a tensor that is watched. They are as `changed` has seen them."""
        if self._storages is None:
            strided = (tensor for _, tensor in self.tensors() if tensor.layout is torch.strided)
            self._storages = frozenset(map(storage_key, strided))
        return not self._storages.isdisjoint(map(storage_key, tensors))

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


def _holds(table: Mapping[str, Any], key: str, child: Callable[[], Any]) -> bool:
    """Whether a module is where it was, or still none."""
    return key in table and table[key] is child() and (child is _nothing or table[key] is not None)


def _nothing() -> None:
    return None


def _watch(tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], _Seen]:
    return weakref.ref(tensor), _seen_of(tensor)


def _is_other(tensor: torch.Tensor, seen: _Seen) -> bool:
    """Whether `_seen_of` a tensor would give something else; the least work first."""
    version, address, shape, stride = seen
    return (
        tensor.data_ptr() != address
        or version_of(tensor) != version
        or tensor.shape != shape
        or tensor.stride() != stride
    )


def _seen_of(tensor: torch.Tensor) -> _Seen:
    return (version_of(tensor), tensor.data_ptr(), tensor.shape, tensor.stride())
