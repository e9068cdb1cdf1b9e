"""Checks of `torch_compat.pytree`."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import torch

from dovetail.torch_compat import pytree
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.fakes import new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.symbols import new_shape_env


def check_flatten() -> str | None:
    """Leaves come in the order of the container; None and a size are leaves."""
    tree = {"b": 1, "a": [2, (3, None)], "c": OrderedDict(d=4), "d": torch.Size((2, 3))}
    leaves, spec = pytree.flatten(tree)
    return first_difference(
        ("the leaves", leaves, [1, 2, 3, None, 4, torch.Size((2, 3))]),
        ("the structure of an equal tree", spec == pytree.flatten(dict(tree))[1], True),
        ("the structure of another tree", spec == pytree.flatten(leaves)[1], False),
    )


def check_unflatten() -> str | None:
    """A container is rebuilt with other leaves, and with its types."""
    _, spec = pytree.flatten({"a": [1, (2, OrderedDict(b=3)), [], {}], 1: 4})
    rebuilt = pytree.unflatten([4, 5, 6, 7], spec)
    return first_difference(
        ("the container", rebuilt, {"a": [4, (5, OrderedDict(b=6)), [], {}], 1: 7}),
        ("the type inside", type(rebuilt["a"][1][1]), OrderedDict),
        ("the type of a size", type(pytree.unflatten([1], _size_of_symbols())), torch.Size),
    )


def _size_of_symbols() -> pytree.TreeSpec:
    rows = symbolic_fake_of(new_fake_mode(new_shape_env()), torch.empty(5), "x")
    return pytree.flatten(rows.shape)[1]


def check_is_fixed_size() -> str | None:
    """Sizes of plain numbers are; those of symbols, and tuples, are not."""
    kinds = (torch.Size((2, 3)), torch.Size(()), (2, 3), pytree.unflatten([_Number(2)], _size_of_symbols()))
    return first_difference(("which", [pytree.is_fixed_size(kind) for kind in kinds], [True, True, False, False]))


class _Number(int):
    """No plain number."""


def check_is_node() -> str | None:
    """Containers that torch knows are nodes, and classes of the user's are not."""
    kinds = (dict, torch.Size, namedtuple("Pair", "a b"), Exception)
    return first_difference(("which", [pytree.is_node(kind) for kind in kinds], [True, True, True, False]))


def check_with_keys() -> str | None:
    """Keys of all kinds of dictionaries are changed, however deep they lie."""
    leaves, spec = pytree.flatten([{"a": 1}, OrderedDict(b=(2,)), defaultdict(dict, c={"d": 3})])
    changed = pytree.unflatten(leaves, pytree.with_keys(spec, str.upper))
    return first_difference(
        ("the container", changed, [{"A": 1}, OrderedDict(B=(2,)), defaultdict(dict, C={"D": 3})]),
        ("the kinds", list(map(type, changed)), [dict, OrderedDict, defaultdict]),
    )


CHECKS = (check_is_node, check_is_fixed_size, check_flatten, check_unflatten, check_with_keys)
