"""What a step puts into Python objects, or hands to Python code: tensors, numbers, texts, new objects made of them.

What was there before is handed on by where it lies: a later call may find another object there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.ir.calling import Formatted, FromConstant, FromLeft, FromOutput, WithLook
from dovetail.ops.seen import as_seen
from dovetail.reach.made_objects import fill, held_by, new_object
from dovetail.reach.values import (
    CONTAINERS,
    LOOKED_INTO,
    PLAIN,
    Kind,
    attributes_of,
    dict_methods,
    is_a,
    is_heap_type,
    is_made_again,
    is_made_of_attributes,
    is_plain_key,
    kind_of,
)
from dovetail.torch_compat.traced_numbers import as_plain, is_traced, keys_found


@dataclass(frozen=True, slots=True)
class FromPlace:
    """The object that lies at a path when the program has run, before anything is put anywhere."""

    path: Path


@dataclass(frozen=True, slots=True)
class New:
    """An object that each run makes. keys: of a dictionary, or names of attributes. number: one for each object.

    names: of attributes that a container has besides, whose parts come last.
    """

    kind: type
    parts: tuple[Tree, ...]
    keys: tuple[Any, ...]
    number: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Again:
    """A list, a dictionary or an object that is a part of itself."""

    number: int


Tree: TypeAlias = "FromConstant | FromPlace | FromOutput | FromLeft | WithLook | Formatted | New | Again"


@dataclass(slots=True)
class Handed:
    """What one run hands out. results, left: see `CallPlan`. places: what lies where. made: new objects that were made
    already, by number.
    """

    results: Sequence[Any] = ()
    left: Sequence[Any] = ()
    places: Mapping[Path, Any] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)


_BY_PLACE = CONTAINERS | LOOKED_INTO
DICTIONARIES = (dict, OrderedDict, defaultdict, Counter)
"""Classes of dictionaries of which a run makes another one."""


class NotMadeAgain(Exception):
    """A value has a part of which a run makes no other."""


class Trees:
    """Takes values of one recording apart.

    places: where objects lie that are handed on. unknown: objects that do not lie anywhere, as far as is known.
    """

    def __init__(self, recording: StepRecording, reachable: ReachableState, was_made: Callable[[Any], bool]) -> None:
        """reachable: what was there before the step. was_made: whether the step has made an object."""
        self.places: dict[Path, None] = {}
        self.unknown: list[Any] = []
        self._was_made = was_made
        self._recording = recording
        self._reachable = reachable
        self._made: dict[int, New | Again] = {}
        self._handed = set[int]()
        self._left: dict[int, FromOutput] = {}
        self._alive: list[Any] = []

    def of(self, value: Any) -> Tree:
        """How a run makes a value. Raises: NotMadeAgain; DovetailError for a tensor that cannot be handed out."""
        self._alive.append(value)
        if isinstance(value, torch.Tensor) or is_traced(value) or self._recording.is_text(value):
            if id(value) not in self._left:
                self._left[id(value)] = FromOutput(self._recording.keep(value))
            return self._left[id(value)]
        if type(value) in PLAIN or kind_of(type(value)) is Kind.PLAIN or isinstance(value, Enum):
            return FromConstant(value)
        if is_a(value, type) and not is_heap_type(value):  # a class of C, the factory of a `defaultdict` perhaps
            return FromConstant(value)
        if self._reachable.knows(value):
            try:
                return self.known(value) or FromConstant(value)
            except NotMadeAgain:
                if not is_a(value, tuple):
                    raise
        if id(value) not in self._made:
            again = Again(len(self._made))
            if not is_a(value, tuple):  # of which another one does
                self.unknown.append(value)
            self._made[id(value)] = again  # as long as its parts are looked at
            keys, parts = self._parts(value)
            beside = _beside(value)
            parts += beside.values()
            self._made[id(value)] = New(type(value), tuple(map(self.of, parts)), keys, again.number, tuple(beside))
        made = self._made[id(value)]
        if isinstance(made, Again) and is_a(value, tuple):  # which is made of its parts
            raise NotMadeAgain
        return made

    def note_containers(self, value: Any) -> None:
        """A value is left elsewhere too."""
        self._handed.update(map(id, _containers_in(value)))

    def of_result(self, result: Any, leaves: Sequence[Any], *, is_made: bool) -> Tree | None:
        """How a run makes what the step returns, where that shares objects with what it leaves, or holds one twice.

        leaves: of the result, in order. is_made: whether it has objects that are made in any case. None where it shares
        nothing, or where it cannot be told.
        """
        met = list(_containers_in(result, and_objects=True))
        is_shared = len(set(map(id, met))) < len(met) or any(id(item) in self._made for item in met)
        if not (is_made or is_shared):
            return None
        for number, leaf in enumerate(leaves):
            self._left.setdefault(id(leaf), FromOutput(number))
        try:
            return self.of(result)
        except NotMadeAgain:
            return None

    def hands_on(self, value: Any) -> bool:
        """Whether a container, or one inside it, is left elsewhere too."""
        return any(id(item) in self._handed or id(item) in self._made for item in _containers_in(value))

    def known(self, value: Any) -> FromPlace | None:
        """Where an object lies that was there before the step; None for those that are the same ones in every call.

        Raises: NotMadeAgain for one that lies nowhere.
        """
        if kind_of(type(value)) not in _BY_PLACE:
            return None
        if not self._reachable.knows(value):
            self.unknown += [] if is_a(value, tuple) else [value]
            return None
        path = self._reachable.path_to(value)
        if path is None:
            raise NotMadeAgain
        self.places[path] = None
        self._handed.add(id(value))
        return FromPlace(path)

    def place_of(self, scheduler: Any) -> Path | None:
        """Where a scheduler lies when a program is bound; None where nothing but a scheduler leads there."""
        return None if scheduler is None else self._reachable.path_to(scheduler)

    def handed(self, value: Any) -> Tree:
        """How a run finds, or makes, an object that it hands to Python code. Raises: NotMadeAgain."""
        place = self.known(value)
        return place or (self.of(value) if kind_of(type(value)) is Kind.OBJECT else FromConstant(value))

    def _is_key(self, key: Any) -> bool:
        """Whether a key of a dictionary is the same one in every call."""
        if isinstance(key, torch.Tensor) or self._recording.is_text(key):
            return False
        return is_plain_key(key) or kind_of(type(key)) not in _BY_PLACE

    def _parts(self, value: Any) -> tuple[tuple[Any, ...], list[Any]]:
        """Keys or names, and what they stand for, of an object that the step has made. Raises: NotMadeAgain."""
        kind = type(value)
        if kind in DICTIONARIES:
            with keys_found() if any(map(is_traced, dict.keys(value))) else nullcontext():
                keys, values = list(value), list(dict_methods(value).values(value))
            keys = list(map(as_plain, keys))  # the dictionary has looked at them: they are for this program
            if not all(map(self._is_key, keys)):
                raise NotMadeAgain
            return tuple(keys), values
        if kind in (list, deque) or is_a(value, tuple):
            return (), list(value)
        if kind is set and all(map(self._is_key, value)) and list(set(value)) == list(value):
            return (), list(value)
        if not (is_made_again(kind) and self._was_made(value)):
            raise NotMadeAgain
        held = held_by(value)
        return tuple(held), list(held.values())


def _containers_in(value: Any, *, and_objects: bool = False) -> Iterator[Any]:
    """A list or dictionary, and those inside it, tuples too; one that is met twice is not looked into again.

    and_objects: objects in them as well, which are not looked into.
    """
    left, met = [value], set[int]()
    while left:
        item = left.pop()
        if type(item) in (list, deque, *DICTIONARIES) or is_a(item, tuple):
            if not is_a(item, tuple):
                yield item
            if id(item) not in met:
                met.add(id(item))
                left += dict.values(item) if is_a(item, dict) else item
        elif and_objects and is_made_of_attributes(type(item)):
            yield item


def grown(tree: Tree, run: Handed) -> Any:
    """The value of one run."""
    if isinstance(tree, FromOutput):
        return run.results[tree.output]
    if isinstance(tree, FromConstant):
        return tree.value
    if isinstance(tree, FromPlace):
        return run.places[tree.path]
    if isinstance(tree, FromLeft):
        return run.left[tree.left]
    if isinstance(tree, WithLook):
        assert isinstance(tree.of, FromLeft), "results have their looks already"
        return as_seen(run.left[tree.of.left], tree.look)
    if isinstance(tree, Formatted):
        return tree.made(run.left)
    if tree.number not in run.made:
        assert isinstance(tree, New), "it was begun"
        if issubclass(tree.kind, tuple):
            run.made[tree.number] = _tuple_of(tree.kind, [grown(part, run) for part in tree.parts])
        elif not tree.names:
            made = run.made[tree.number] = new_object(tree.kind)
            _fill(made, tree, [grown(part, run) for part in tree.parts])
        else:
            parts = tree.parts[: -len(tree.names)]
            beside = dict(zip(tree.names, [grown(part, run) for part in tree.parts[len(parts) :]], strict=True))
            made = run.made[tree.number] = _begun(tree.kind, beside)
            _fill(made, tree, [grown(part, run) for part in parts])
    return run.made[tree.number]


def _beside(container: Any) -> dict[str, Any]:
    """What a container of Python's own has besides what it holds."""
    if type(container) is defaultdict:
        return {"default_factory": container.default_factory}
    if type(container) is deque:
        return {"maxlen": container.maxlen}
    return dict(attributes_of(container)) if type(container) in (OrderedDict, Counter) else {}


def _begun(kind: type, beside: Mapping[str, Any]) -> Any:
    """A new object that holds nothing yet. beside: see `_beside`."""
    if kind is deque:
        return deque(maxlen=beside["maxlen"])
    if kind is defaultdict:
        return defaultdict(beside["default_factory"])
    made = new_object(kind)
    fill(made, beside, beside.values())
    return made


def _fill(made: Any, tree: New, parts: list[Any]) -> None:
    """Let a new list, dictionary, set or object hold its parts."""
    if tree.kind is dict:
        made.update(zip(tree.keys, parts, strict=True))
    elif tree.kind in (list, deque):
        made.extend(parts)
    elif tree.kind is set:
        made.update(parts)
    elif tree.kind in DICTIONARIES:
        dict_methods(made).update(made, zip(tree.keys, parts, strict=True))
    else:
        fill(made, tree.keys, parts)


def _tuple_of(kind: Any, parts: list[Any]) -> Any:
    """A tuple of a class; of the user's, without running a `__new__`."""
    return kind(parts) if kind is torch.Size else tuple.__new__(kind, parts)


def refill(container: Any, held: Any) -> None:
    """Let a list, a deque, a set or a dictionary hold something else, whatever methods its class has."""
    methods: Any = next(kind for kind in (OrderedDict, dict, list, deque, set) if is_a(container, kind))
    methods.clear(container)
    if is_a(container, dict):
        for key, value in held.items():
            methods.__setitem__(container, key, value)
    else:
        (methods.update if is_a(container, set) else methods.extend)(container, held)


def slots_of_graphs(reachable: ReachableState) -> list[Slot]:
    """The slots of tensors that are part of graphs from before: a step may put others there, and uses none of them."""
    if not any(_has_graph(tensor) for _, tensor in reachable.tensors):
        return []
    return [slot for slot in reachable.slots if _has_graph(slot.read())]


def _has_graph(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.requires_grad and not item.is_leaf
