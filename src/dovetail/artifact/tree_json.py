"""A structure of arguments or results (`artifact.tree`) as plain data for JSON, and back.

    {"kind": "dict", "keys": ["x", "y"], "children": [{"kind": "leaf"}, {"kind": "tuple", "children": [...]}]}

`keys`, `children`, `name` and `limit` are omitted if empty. Names of classes are only texts; reading looks nothing up
by them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dovetail.artifact.operand_json import operand_from_json, operand_to_json
from dovetail.artifact.tree import FACTORIES, KEYS, Tree, TreeKind, check_return_type, is_field
from dovetail.ir.program import Value

_CLASS_NAME = re.compile(r"[\w.<>]{1,500}")
_DICTS = (TreeKind.DICT, TreeKind.ORDERED_DICT, TreeKind.DEFAULT_DICT)
_OBJECTS = (TreeKind.NAMED_TUPLE, TreeKind.MAPPING, TreeKind.OBJECT)


def tree_to_json(tree: Tree) -> dict[str, Any]:
    """The structure as data for `json_text.json_bytes`, which refuses structures that are nested very deeply."""
    data: dict[str, Any] = {"kind": tree.kind.value}
    if tree.keys:
        data["keys"] = [operand_to_json(key) for key in tree.keys]
    if tree.children:
        data["children"] = [tree_to_json(child) for child in tree.children]
    if tree.name:
        data["name"] = tree.name
    if tree.limit is not None:
        data["limit"] = tree.limit
    return data


def tree_from_json(data: object) -> Tree:
    """The structure that `tree_to_json` wrote; equal to it.

    Raises: ValueError for other data, and for a return type that this torch does not have.
    """
    try:
        tree = _read(data)
        if json.dumps(tree_to_json(tree), sort_keys=True) != json.dumps(data, sort_keys=True):
            raise ValueError("it is not written as dovetail writes it")
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error
    return tree


def _read(data: Any) -> Tree:
    if not isinstance(data, dict):
        raise ValueError(f"{data!r} is not a structure")
    kind = TreeKind(data["kind"])
    children = tuple([_read(child) for child in data.get("children", ())])
    keys = tuple([operand_from_json(key, _no_value) for key in data.get("keys", ())])
    tree = Tree(kind, children, keys, data.get("name", ""), data.get("limit"))
    _check(tree)
    return tree


def _no_value(name: str) -> Value:
    raise ValueError(f"value {name!r} is used where no values are allowed")


def _check(tree: Tree) -> None:
    """What the kind allows, and nothing else."""
    kind = tree.kind
    if kind is TreeKind.LEAF and tree != Tree():
        raise ValueError("a leaf has parts")
    if len(tree.keys) != (len(tree.children) if kind in _DICTS or kind in _OBJECTS else 0):
        raise ValueError(f"a {kind.value} has {len(tree.keys)} keys for {len(tree.children)} parts")
    if not all(type(key) in KEYS and key == key for key in tree.keys) or len(set(tree.keys)) < len(tree.keys):
        raise ValueError("a key is not a plain value, is not equal to itself, or occurs twice")
    if kind in _OBJECTS and not all(map(is_field, tree.keys)):
        raise ValueError("the name of a field is not a name")
    if not _is_name(tree.name, kind):
        raise ValueError(f"{tree.name!r} is not a name of a {kind.value}")
    if tree.limit is not None and (
        kind is not TreeKind.DEQUE or type(tree.limit) is not int or tree.limit < len(tree.children)
    ):
        raise ValueError(f"a {kind.value} of at most {tree.limit!r} has {len(tree.children)} parts")
    if kind is TreeKind.SIZE and any(child != Tree() for child in tree.children):
        raise ValueError("a size has parts with parts of their own")
    if kind is TreeKind.RETURN_TYPE:
        check_return_type(tree)


def _is_name(name: object, kind: TreeKind) -> bool:
    if kind is TreeKind.DEFAULT_DICT:
        return isinstance(name, str) and name in FACTORIES
    if kind is TreeKind.RETURN_TYPE:
        return isinstance(name, str) and name.isidentifier()
    if kind in _OBJECTS:
        return isinstance(name, str) and _CLASS_NAME.fullmatch(name) is not None
    return name == ""
