"""How arguments and results are nested, without their classes: a file can hold it, and no code comes from a file.

`tree_of` describes an example. `take_apart` gives the leaves of another object of that structure, `put_together` makes
one of other leaves. Anything that is not a container is a leaf, None and a `torch.Size` of fixed numbers among them, in
the order of `torch_compat.pytree`.

Lists, tuples, dictionaries (ordered, with defaults), deques and what torch's operators return (`torch.return_types`)
come back as they were. For a named tuple, a dataclass or a Hugging Face output, the tree has the qualified name
and the names of its fields. It comes back as that class if the caller passes it, otherwise as a `NamedResult`; classes
are never looked up by the name that a file gives.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.artifact.named_result import NamedResult
from dovetail.errors import NotSerializable
from dovetail.torch_compat import pytree


class TreeKind(enum.Enum):
    """What a part of a structure is."""

    LEAF = "leaf"
    LIST = "list"
    TUPLE = "tuple"
    DICT = "dict"
    ORDERED_DICT = "ordered dict"
    DEFAULT_DICT = "default dict"
    DEQUE = "deque"
    SIZE = "size"
    RETURN_TYPE = "return type"
    NAMED_TUPLE = "named tuple"
    MAPPING = "mapping"
    OBJECT = "object"


# Default factories that have a name here; others are code.
FACTORIES: Mapping[str, Callable[[], Any] | None] = {
    "None": None,
    **{kind.__name__: kind for kind in (list, dict, set, tuple, int, float, str, bool)},
}
_DICTS: Mapping[TreeKind, Any] = {
    TreeKind.DICT: dict,
    TreeKind.ORDERED_DICT: OrderedDict,
    TreeKind.DEFAULT_DICT: defaultdict,
}
_NAMED = frozenset({TreeKind.NAMED_TUPLE, TreeKind.MAPPING, TreeKind.OBJECT})
# What keys of a dictionary may be.
KEYS = (str, int, bool, float, type(None))


@dataclass(frozen=True, slots=True)
class Tree:
    """A part of a structure. keys: of a dictionary, or names of fields; one per child.

    name: the qualified name of a class, the name of a `torch.return_types`, or that of a default factory. limit: of a
    deque.
    """

    kind: TreeKind = TreeKind.LEAF
    children: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    name: str = ""
    limit: int | None = None

    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is TreeKind.LEAF else sum(child.leaves() for child in self.children)


def tree_of(example: Any, what: str = "the structure of a call") -> Tree:
    """The structure of an object.

    Raises: NotSerializable for a container that only its own class can take apart, keys of a dictionary that are no
    plain values, and objects with fields that are not names.
    """
    try:
        return _described(example)
    except (ValueError, RecursionError) as error:
        hint = "use lists, tuples, dictionaries, named tuples or dataclasses"
        raise NotSerializable(what=what, reason=error, hint=hint) from error


def qualified_name(cls: type) -> str:
    """The name by which `put_together` asks for a class: `package.module.Outer.Inner`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def take_apart(value: Any, tree: Tree) -> list[Any]:
    """The leaves of an object of this structure, in order.

    A class may stand where another one of the same fields stood. Keys of dictionaries come in the same order: what was
    recorded may have gone through them in it. Raises: ValueError that names the place where the structure differs.
    """
    leaves: list[Any] = []
    _collect(value, tree, "", leaves)
    return leaves


def put_together(leaves: Sequence[Any], tree: Tree, containers: Mapping[str, type] | None = None) -> Any:
    """An object of this structure with these leaves.

    containers: classes by `qualified_name`. A named tuple is made by calling its class, an output of Hugging Face's
    too; another object is made without running its code. Raises: ValueError for another number of leaves, or a class
    that has other fields.
    """
    if len(leaves) != tree.leaves():
        raise ValueError(f"the structure has {tree.leaves()} leaves, not {len(leaves)}")
    return _made(iter(leaves), tree, containers or {})


def check_containers(tree: Tree, containers: Mapping[str, type]) -> None:
    """Raise ValueError unless the classes for what a tree names have the fields that it names."""
    cls = containers.get(tree.name) if tree.kind in _NAMED else None
    if cls is not None and not _has_fields(cls, tree):
        raise ValueError(_other_fields(cls, tree))
    for child in tree.children:
        check_containers(child, containers)


def _other_fields(cls: type, tree: Tree) -> str:
    return f"{qualified_name(cls)} has other fields than the {tree.name} that was saved"


def _described(item: Any) -> Tree:
    cls = type(item)
    if cls is torch.Size:
        return Tree() if pytree.is_fixed_size(item) else Tree(TreeKind.SIZE, tuple(map(_described, item)))
    if cls in (list, tuple):
        return Tree(TreeKind.LIST if cls is list else TreeKind.TUPLE, tuple(map(_described, item)))
    if cls is deque:
        return Tree(TreeKind.DEQUE, tuple(map(_described, item)), limit=item.maxlen)
    for kind, type_ in _DICTS.items():
        if cls is type_:
            return _described_dict(item, kind)
    if isinstance(item, tuple) and cls.__module__ == "torch.return_types":
        return Tree(TreeKind.RETURN_TYPE, tuple(map(_described, item)), name=cls.__name__)
    found = _fields_of(item)
    if found is not None:
        return _described_fields(item, *found)
    leaves, _ = pytree.flatten(item)
    if len(leaves) != 1 or leaves[0] is not item:
        raise ValueError(f"it has a {qualified_name(cls)}, which only its own code can flatten")
    return Tree()


def _described_dict(item: Any, kind: TreeKind) -> Tree:
    for key in item:
        if type(key) not in KEYS or key != key:
            raise ValueError(f"a key of a dictionary is {key!r}")
    name = ""
    if kind is TreeKind.DEFAULT_DICT:
        name = next((name for name, factory in FACTORIES.items() if factory is item.default_factory), "")
        if not name:
            raise ValueError(f"the default of a dictionary is made by {item.default_factory!r}")
    return Tree(kind, tuple(map(_described, item.values())), tuple(item), name)


def _described_fields(item: Any, kind: TreeKind, fields: Mapping[str, Any]) -> Tree:
    for name in fields:
        if not is_field(name):
            raise ValueError(f"a {type(item).__name__} has a field called {name!r}")
    children = tuple(map(_described, fields.values()))
    return Tree(kind, children, tuple(fields), qualified_name(type(item)))


def is_field(name: object) -> bool:
    """Whether this can be the name of a field: a Python name that means nothing to Python itself."""
    return isinstance(name, str) and name.isidentifier() and not (name.startswith("__") and name.endswith("__"))


def _collect(value: Any, tree: Tree, place: str, leaves: list[Any]) -> None:
    if tree.kind is TreeKind.LEAF:
        leaves.append(value)
        return
    parts = _parts(value, tree)
    if parts is None:
        if _has_keys_in_other_order(value, tree):
            keys = f"{', '.join(map(repr, value))}, not {', '.join(map(repr, tree.keys))}"
            raise ValueError(f"{place or 'the whole'} has its keys in another order: {keys}")
        wanted = tree.name if tree.kind in _NAMED else f"{tree.kind.value} of {len(tree.children)}"
        raise ValueError(f"{place or 'the whole'} is a {_said(value)}, not a {wanted}{_keys_said(tree)}")
    for number, (part, child) in enumerate(zip(parts, tree.children, strict=True)):
        step = f".{tree.keys[number]}" if tree.kind in _NAMED else f"[{(tree.keys or range(number + 1))[number]!r}]"
        _collect(part, child, place + step, leaves)


def _said(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, list | tuple | dict | deque) else ""
    return f"{type(value).__name__}{size}"


def _keys_said(tree: Tree) -> str:
    return f" with {', '.join(map(repr, tree.keys))}" if tree.keys else ""


def _parts(value: Any, tree: Tree) -> list[Any] | None:
    """The children of an object, or None when it has another structure."""
    if tree.kind in _DICTS:
        right = type(value) is _DICTS[tree.kind] and _same_keys(value, tree.keys)
        return [value[key] for key in tree.keys] if right else None
    if tree.kind in _NAMED:
        return _field_parts(value, tree)
    kinds = {TreeKind.LIST: list, TreeKind.TUPLE: tuple, TreeKind.DEQUE: deque, TreeKind.SIZE: torch.Size}
    right = type(value) is kinds[tree.kind] if tree.kind in kinds else _is_return_type(value, tree.name)
    return list(value) if right and len(value) == len(tree.children) else None


def _same_keys(value: Mapping[Any, Any], keys: Sequence[Any]) -> bool:
    return [(type(key), key) for key in value] == [(type(key), key) for key in keys]


def _has_keys_in_other_order(value: Any, tree: Tree) -> bool:
    is_dict = tree.kind in _DICTS and type(value) is _DICTS[tree.kind]
    return is_dict and {(type(key), key) for key in value} == {(type(key), key) for key in tree.keys}


def _is_return_type(value: Any, name: str) -> bool:
    return (type(value).__module__, type(value).__name__) == ("torch.return_types", name)


def _field_parts(value: Any, tree: Tree) -> list[Any] | None:
    if isinstance(value, NamedResult):
        return [value[name] for name in tree.keys] if tuple(value.keys()) == tree.keys else None
    found = _fields_of(value)
    if found is None or found[0] is not tree.kind or set(found[1]) != set(tree.keys):
        return None
    return [found[1][name] for name in tree.keys]


def _fields_of(value: Any) -> tuple[TreeKind, dict[str, Any]] | None:
    """What kind of object with fields this is, and its fields; None for any other object."""
    cls = type(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return TreeKind.NAMED_TUPLE, dict(zip(cls._fields, value, strict=True))
    if not hasattr(cls, "__dataclass_fields__") or isinstance(value, type | torch.nn.Module):
        return None
    if isinstance(value, Mapping):
        return TreeKind.MAPPING, dict(value)
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    names = list(dict.fromkeys([*names, *getattr(value, "__dict__", ())]))
    return TreeKind.OBJECT, {name: getattr(value, name) for name in names}


def _made(leaves: Iterator[Any], tree: Tree, containers: Mapping[str, type]) -> Any:
    if tree.kind is TreeKind.LEAF:
        return next(leaves)
    items = [_made(leaves, child, containers) for child in tree.children]
    if tree.kind in _NAMED:
        return _made_object(items, tree, containers.get(tree.name))
    if tree.kind is TreeKind.DEFAULT_DICT:
        return defaultdict(FACTORIES[tree.name], zip(tree.keys, items, strict=True))
    if tree.kind in _DICTS:
        return _DICTS[tree.kind](zip(tree.keys, items, strict=True))
    if tree.kind is TreeKind.DEQUE:
        return deque(items, tree.limit)
    if tree.kind is TreeKind.RETURN_TYPE:
        return _return_type(tree)(items)
    if tree.kind is TreeKind.SIZE and all(type(item) is int for item in items):  # a forged file may have others
        return torch.Size(items)
    return items if tree.kind is TreeKind.LIST else tuple(items)


def _return_type(tree: Tree) -> Any:
    found = getattr(torch.return_types, tree.name, None)
    if not isinstance(found, type) or not issubclass(found, tuple) or found.__module__ != "torch.return_types":
        raise ValueError(f"torch.return_types has no {tree.name}")
    if getattr(found, "n_fields", None) != len(tree.children):
        raise ValueError(f"{tree.name} has another number of fields in this torch")
    return found


def check_return_type(tree: Tree) -> None:
    """Raise ValueError unless this torch has the return type that the tree names."""
    _return_type(tree)


def _made_object(items: Sequence[Any], tree: Tree, cls: Any) -> Any:
    fields = dict(zip(tree.keys, items, strict=True))
    if cls is None:
        return NamedResult(tree.name, fields, is_tuple=tree.kind is TreeKind.NAMED_TUPLE)
    if not _has_fields(cls, tree):
        raise ValueError(_other_fields(cls, tree))
    if tree.kind is TreeKind.NAMED_TUPLE:
        return cls(*items)
    try:
        if tree.kind is TreeKind.MAPPING:
            return cls(**fields)
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{qualified_name(cls)} takes other fields than the {tree.name} that was saved") from error
    return made


def _has_fields(cls: Any, tree: Tree) -> bool:
    """Whether a class has the fields that a tree names, and no field that would be left without a value."""
    if tree.kind is TreeKind.NAMED_TUPLE:
        return getattr(cls, "_fields", None) == tree.keys
    if not hasattr(cls, "__dataclass_fields__") or issubclass(cls, Mapping) != (tree.kind is TreeKind.MAPPING):
        return False
    if tree.kind is TreeKind.MAPPING:
        return {field.name for field in dataclasses.fields(cls)} >= set(tree.keys)
    return all(field.name in tree.keys or hasattr(cls, field.name) for field in dataclasses.fields(cls))
