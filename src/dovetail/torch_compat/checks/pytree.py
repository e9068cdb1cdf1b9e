"""Checks of `torch_compat.pytree`."""

from __future__ import annotations

from collections import OrderedDict

import torch

from dovetail.torch_compat import pytree
from dovetail.torch_compat.checks.difference import first_difference


def check_flatten() -> str | None:
    """Leaves come in the order of the container; None is a leaf."""
    tree = {"b": 1, "a": [2, (3, None)], "c": OrderedDict(d=4)}
    leaves, spec = pytree.flatten(tree)
    return first_difference(
        ("the leaves", leaves, [1, 2, 3, None, 4]),
        ("the structure of an equal tree", spec == pytree.flatten(dict(tree))[1], True),
        ("the structure of another tree", spec == pytree.flatten([1, 2, 3, None, 4])[1], False),
    )


def check_flatten_results() -> str | None:
    """A size is one leaf."""
    leaves, spec = pytree.flatten_results([torch.Size((2, 3)), 1])
    return first_difference(
        ("the leaves", leaves, [torch.Size((2, 3)), 1]),
        ("the type of a size", type(pytree.unflatten(leaves, spec)[0]), torch.Size),
    )


def check_unflatten() -> str | None:
    """A container is rebuilt with other leaves, and with its types."""
    _, spec = pytree.flatten({"a": [1, (2, OrderedDict(b=3))]})
    rebuilt = pytree.unflatten([4, 5, 6], spec)
    return first_difference(
        ("the container", rebuilt, {"a": [4, (5, OrderedDict(b=6))]}),
        ("the type inside", type(rebuilt["a"][1][1]), OrderedDict),
    )


CHECKS = (check_flatten, check_flatten_results, check_unflatten)
