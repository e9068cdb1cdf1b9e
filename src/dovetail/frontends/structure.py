"""Taking arguments and results apart: torch's pytrees, and the dataclasses that nobody registered as such.

An object is taken apart into its attributes and put together again without running code of its class. What is put
together is another object: a change that the compiled code makes to it would be lost, and is looked for (`changes`).
Of arguments, objects of more classes are taken apart (`Classes`), but none where one is met twice in a call, as code
may see that it is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dovetail.deferred import deferred
from dovetail.torch_compat import pytree
from dovetail.torch_compat.traced_numbers import as_plain

if TYPE_CHECKING:
    from dovetail.reach import made_objects
    from dovetail.reach import values as reach_values
else:
    made_objects, reach_values = deferred("dovetail.reach.made_objects"), deferred("dovetail.reach.values")


@dataclass(frozen=True, slots=True)
class Parts:
    """An object that was taken apart: its place among the leaves, and its attributes.

    counts, structures: of the leaves of each attribute, and how to put them together.
    """

    place: int
    cls: type
    names: tuple[str, ...]
    counts: tuple[int, ...]
    structures: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class WithObjects:
    """A pytree with objects among its leaves."""

    spec: pytree.TreeSpec
    objects: tuple[Parts, ...]


Structure: TypeAlias = pytree.TreeSpec | WithObjects


@dataclass(frozen=True, slots=True)
class Made:
    """An object that was put together. first: its first leaf."""

    item: Any
    parts: Parts
    first: int

    def leaves(self) -> Iterator[tuple[str, range]]:
        """Its attributes, each with its leaves."""
        end = self.first
        for name, count in zip(self.parts.names, self.parts.counts, strict=True):
            end += count
            yield name, range(end - count, end)


class Classes:
    """Objects of which classes are taken apart: dataclasses, and those that calls have shown to be new in each.

    Not those that code cannot use so, as it compares objects, or changes them. whole_containers: classes of containers
    that are left whole as well, because code changes them.
    """

    def __init__(self, opened: Iterable[type] = ()) -> None:
        """opened: classes beside dataclasses."""
        self._opened = set(opened)
        self._whole: set[type] = set()
        self.whole_containers: frozenset[type] = frozenset()

    def open(self, kind: type) -> bool:
        """From now on, objects of a class are taken apart. Whether this is new: some cannot be."""
        is_new = kind not in self._opened and kind not in self._whole and reach_values.is_made_of_attributes(kind)
        if is_new:
            self._opened.add(kind)
        return is_new

    def close(self, kinds: Iterable[type], *, dataclasses: bool) -> set[type]:
        """Leave objects of classes as they are from now on; answers which are new. dataclasses: these as well."""
        closed = {kind for kind in kinds if dataclasses or kind in self._opened} - self._whole
        self._whole |= closed
        self.whole_containers |= frozenset(kind for kind in closed if pytree.is_node(kind))
        return closed

    def reopen(self, kinds: Iterable[type]) -> None:
        """Take objects apart again that were closed."""
        self._whole -= set(kinds)

    def has(self, kind: type) -> bool:
        """Whether objects of a class are taken apart."""
        if kind in self._whole:
            return False
        return kind in self._opened or (
            hasattr(kind, "__dataclass_fields__")
            and not issubclass(kind, torch.nn.Module)
            and reach_values.built_in_base(kind) in reach_values.ATTRIBUTES_ALONE
        )


DATACLASSES = Classes()
_NO_CONTAINERS = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None)))
_TEXT = frozenset((str,))


def flatten(
    tree: object, is_whole: Callable[[Any], bool] | None = None, classes: Classes | None = DATACLASSES
) -> tuple[list[Any], Structure]:
    """The leaves of nested containers and objects, and how to put them together.

    is_whole: whether a container, or an object, is a leaf all the same. classes: of objects that are none; all that are
    no containers, for None.
    """
    leaves, spec = pytree.flatten(tree, is_whole)
    if not any(_is_object(leaf, classes) for leaf in leaves):
        return leaves, spec
    flat: list[Any] = []
    objects: list[Parts] = []
    for leaf in leaves:
        if not _is_object(leaf, classes) or (is_whole is not None and is_whole(leaf)):
            flat.append(leaf)
            continue
        held = made_objects.held_by(leaf)
        parts = [flatten(value, is_whole, classes) for value in held.values()]
        counts, structures = tuple(len(own) for own, _ in parts), tuple(structure for _, structure in parts)
        objects.append(Parts(len(flat), type(leaf), tuple(held), counts, structures))
        for own, _ in parts:
            flat += own
    return flat, WithObjects(spec, tuple(objects))


def flatten_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], classes: Classes = DATACLASSES
) -> tuple[list[Any], Structure]:
    """The leaves of the arguments of a call, and how to put them together.

    classes: of objects that are taken apart.
    Cost: 0.5 us where none is a container; 0.5 us for each plain one, and 0.03 us for each leaf.
    """
    leaves = [*args, *kwargs.values()]
    if _NO_CONTAINERS.issuperset(map(type, leaves)):
        return leaves, _structure_of_leaves(len(args), tuple(kwargs))
    flat: list[Any] = []
    met: set[int] = set()
    if classes.whole_containers:
        whole, own = classes.whole_containers, (args, kwargs)
        return flatten(own, lambda item: type(item) in whole and all(item is not x for x in own), classes)
    try:
        return flat, _structure_of(_form(args, flat, classes, met), _form(kwargs, flat, classes, met))
    except _NotPlainError:
        return flatten((args, kwargs), None, classes)
    except _MetTwiceError:
        return flatten((args, kwargs), None, _NONE)


def is_flat(args: tuple[Any, ...], kwargs: Mapping[str, Any], structure: Structure) -> bool:
    """Whether no argument of a call is a container. structure: of the call, as `flatten_call` gives it."""
    return structure is _structure_of_leaves(len(args), tuple(kwargs))


def unflatten(leaves: list[Any], structure: Structure, made: list[Made] | None = None, first: int = 0) -> Any:
    """What `flatten` took apart, with other leaves. made: gets the objects. first: number of the first leaf."""
    if not isinstance(structure, WithObjects):
        return pytree.unflatten(leaves, structure)
    whole: list[Any] = []
    end = 0
    for parts in structure.objects:
        whole += leaves[end : parts.place]
        end, values = parts.place, []
        for count, inner in zip(parts.counts, parts.structures, strict=True):
            values.append(unflatten(leaves[end : end + count], inner, made, first + end))
            end += count
        item = made_objects.new_object(parts.cls)
        made_objects.fill(item, parts.names, values)
        if made is not None:
            made.append(Made(item, parts, first + parts.place))
        whole.append(item)
    return pytree.unflatten([*whole, *leaves[end:]], structure.spec)


def classes_in(structure: Structure) -> set[type]:
    """The classes of objects that were taken apart."""
    if not isinstance(structure, WithObjects):
        return set()
    inner = [classes_in(part) for parts in structure.objects for part in parts.structures]
    return {parts.cls for parts in structure.objects}.union(*inner)


def keys_in(structure: Structure) -> list[Any]:
    """The keys of dictionaries."""
    spec = structure.spec if isinstance(structure, WithObjects) else structure
    keys = list(spec.context) if isinstance(spec.context, list) else []
    return [*keys, *(key for child in spec.children() for key in keys_in(child))]


def flatten_made(tree: object, is_whole: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """`flatten` for what a step has made: numbers among the keys are plain, as a dictionary has looked at its keys."""
    leaves, structure = flatten(tree, is_whole)
    return leaves, _with_plain_keys(structure)


def _with_plain_keys(structure: Structure) -> Structure:
    if not isinstance(structure, WithObjects):
        return pytree.with_keys(structure, as_plain)
    objects = tuple(
        replace(parts, structures=tuple(map(_with_plain_keys, parts.structures))) for parts in structure.objects
    )
    return WithObjects(pytree.with_keys(structure.spec, as_plain), objects)


def changes(tree: object, leaves: list[Any], structure: Structure) -> bool:
    """Whether code has put other things into a tree since it was put together."""
    now, found = flatten(tree, None, _Only(classes_in(structure)))
    return found != structure or any(a is not b for a, b in zip(now, leaves, strict=True))


def changed_classes(tree: object, before: object, classes: Classes) -> set[type]:
    """The classes of containers, and of objects of such classes, that hold something else than in an equal tree."""
    kind = type(tree)
    if kind is not type(before) or isinstance(tree, torch.Tensor):
        return set()
    held: Any
    other: Any
    if reach_values.is_a(tree, dict):
        held, other = dict(tree), dict(before)  # type: ignore[call-overload]
    elif reach_values.is_a(tree, (list, tuple, deque)):
        held, other = dict(enumerate(tree)), dict(enumerate(before))  # type: ignore[arg-type]
    elif classes.has(kind):
        held, other = made_objects.held_by(tree), made_objects.held_by(before)
    else:
        return set()
    if list(held) != list(other) or any(type(a) is not type(other[key]) for key, a in held.items()):
        return {kind}
    found = set[type]()
    for key, item in held.items():
        is_inner = pytree.is_node(type(item)) or classes.has(type(item))
        found |= changed_classes(item, other[key], classes) if is_inner else set()
        if not is_inner and item is not other[key]:
            found.add(kind)
    return found


class _NotPlainError(Exception):
    """There is something in a container that torch's pytrees have to look at."""


class _MetTwiceError(Exception):
    """An object is in two places."""


class _Only(Classes):
    """These classes, whether they are dataclasses or not."""

    def has(self, kind: type) -> bool:
        return kind in self._opened


_NONE = _Only()


def _form(item: Any, leaves: list[Any], classes: Classes, met: set[int]) -> Hashable:
    """What tells the structure of containers of Python's own, and of objects.

    leaves: gets theirs. met: the objects so far. Raises: _NotPlainError, _MetTwiceError.
    """
    kind = type(item)
    if kind in _NO_CONTAINERS:
        leaves.append(item)
        return None
    names: Hashable
    held: Any
    if kind is dict:
        names, held = tuple(item), item.values()
        if not _TEXT.issuperset(map(type, names)):  # 1 and True are equal
            raise _NotPlainError
    elif kind is list or kind is tuple:
        names, held = len(item), item
    elif classes.has(kind) and not pytree.is_node(kind):
        if id(item) in met:
            raise _MetTwiceError
        met.add(id(item))
        own = made_objects.held_by(item)
        names, held = tuple(own), own.values()
    else:
        raise _NotPlainError
    if _NO_CONTAINERS.issuperset(map(type, held)):
        leaves += held
        return kind, names
    return kind, names, tuple([_form(part, leaves, classes, met) for part in held])


def _like(form: Any) -> Any:
    """A container, or an object, of a form."""
    if form is None:
        return None
    kind, names, *parts = form
    held = map(_like, parts[0]) if parts else repeat(None, names if kind in (list, tuple) else len(names))
    if kind is dict:
        return dict(zip(names, held, strict=True))
    if kind is list or kind is tuple:
        return kind(held)
    made = made_objects.new_object(kind)
    made_objects.fill(made, names, held)
    return made


@lru_cache(256)
def _structure_of(*forms: Hashable) -> Structure:
    return flatten(tuple(map(_like, forms)), None, None)[1]


@lru_cache(256)
def _structure_of_leaves(count: int, names: tuple[str, ...]) -> Structure:
    return flatten(((None,) * count, dict.fromkeys(names)))[1]


def _is_object(leaf: object, classes: Classes | None) -> bool:
    return classes.has(type(leaf)) if classes is not None else leaf is not None
