"""The operands of a node by the names of its operator's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.ir.program import Node, Operand
from dovetail.torch_compat.dispatch import Overload, schema_of


def arguments_of(node: Node) -> dict[str, Operand]:
    """Every argument of an operator overload, defaults included. A node of another target has none."""
    if not isinstance(node.target, Overload):
        return {}
    arguments = schema_of(node.target).arguments
    found: dict[str, Operand] = {argument.name: argument.default for argument in arguments if argument.has_default}
    found.update(zip((argument.name for argument in arguments), node.args, strict=False))
    found.update(node.kwargs)
    return found


def with_arguments(node: Node, changes: Mapping[str, Operand]) -> Node:
    """The node with other operands for the arguments of these names, which its operator must have."""
    assert isinstance(node.target, Overload), "only operators have named arguments"
    names = [argument.name for argument in schema_of(node.target).arguments]
    args = tuple(changes.get(name, operand) for name, operand in zip(names, node.args, strict=False))
    named = {**dict(node.kwargs), **{name: operand for name, operand in changes.items() if name in names[len(args) :]}}
    return replace(node, args=args, kwargs=tuple(named.items()))
