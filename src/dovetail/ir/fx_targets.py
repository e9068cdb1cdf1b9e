"""Which functions a node of a `torch.fx` graph may call to be one of a program."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import fx

from dovetail.errors import InvalidGraphModule
from dovetail.ir.program import Operand, Target, values_in
from dovetail.torch_compat.dispatch import HigherOrder, Overload, Packet, schema_of, tags_of
from dovetail.torch_compat.symbols import number_function_text

_ATTRIBUTES_AND_ITEMS: dict[Any, str] = {getattr: "getattr", operator.getitem: "operator.getitem"}


def check_target(node: fx.Node, operands: tuple[Operand, ...]) -> None:
    """Raise InvalidGraphModule unless the node calls an operator, a primitive, or a function of numbers on numbers."""
    target: Any = node.target
    if isinstance(target, Overload | HigherOrder) or is_primitive(target):
        return
    name = number_function_text(target)
    tensor = next((value.name for value in values_in(operands) if value.is_tensor), None)
    if name is not None and tensor is None:
        return
    if isinstance(target, Packet):
        reason = f"{target} is a packet of operators, which has no schema: name one overload of it"
    elif tensor is not None and (name is not None or target in _ATTRIBUTES_AND_ITEMS):
        reason = f"it calls {name or _ATTRIBUTES_AND_ITEMS[target]}, a Python function, on the tensor {tensor}"
    else:
        name = ".".join(filter(None, (getattr(target, "__module__", None), getattr(target, "__name__", str(target)))))
        reason = f"it calls {name}, a Python function, which has no schema"
    raise InvalidGraphModule(node=node.name, reason=reason)


Keywords: TypeAlias = "tuple[tuple[str, Operand], ...]"


def in_places(target: Target, args: tuple[Operand, ...], kwargs: Keywords) -> tuple[tuple[Operand, ...], Keywords]:
    """The arguments as torch hands them to a kernel: those that have a place are there, whether they were named or not.

    Everything that reads a program finds operands by their places. What the schema does not take stays as it is given.
    """
    named = dict(kwargs)
    if not named or not isinstance(target, Overload):
        return args, kwargs
    rest = [argument for argument in schema_of(target).arguments if not argument.kwarg_only][len(args) :]
    while rest and rest[-1].name not in named:
        rest.pop()
    if not all(argument.name in named or argument.has_default for argument in rest):
        return args, kwargs
    more = tuple(named.pop(argument.name, argument.default) for argument in rest)
    return (*args, *more), tuple(named.items())


def is_primitive(target: Target) -> bool:
    """Whether it is one of dovetail's own: Python gives its text."""
    return isinstance(getattr(target, "python", None), str)


@cache
def moves_tensors(target: Target) -> bool:
    """Whether the operator gives its operand another shape, strides or place, and hands it back."""
    return isinstance(target, Overload) and schema_of(target).is_mutable and torch.Tag.inplace_view in tags_of(target)


@cache
def may_depend_on_data(target: Target) -> bool:
    """Whether a result, or its shape, may only be known once the operator has run on data."""
    if not isinstance(target, Overload):
        return isinstance(target, HigherOrder)
    return bool(tags_of(target) & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


@cache
def gives_fresh_results(target: Target) -> bool:
    """Whether the schema says of no result that it lies where an operand does."""
    return isinstance(target, Overload) and not any(alias for _, alias, _ in schema_of(target).returns)
