"""The operator for one tensor that torch runs for each tensor of a list, on a CPU.

It is found by schema: `_foreach_X` with every `Tensor[]` and `Scalar[]` read as one tensor or number. A norm is another
operator than the one of that name, with more arguments; those that both have are known by their names.

Source: the slow routes of torch's ATen/native/ForeachOpsKernels.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dovetail.torch_compat.dispatch import Argument, Overload, Schema, overloads, schema_of

PREFIX = "_foreach_"
_OTHERWISE_NAMED = {"norm": "linalg_vector_norm"}


@dataclass(frozen=True, slots=True)
class Single:
    """The operator for one tensor. keywords: arguments that it takes by name. names: of its arguments, parallel to the
    list operator's own, whose names have their places.
    """

    target: Overload
    names: tuple[str, ...]
    keywords: frozenset[str]
    places: dict[str, int]


@cache
def single_of(op: Overload) -> Single | None:
    """The operator for one tensor of the lists that an operator takes, if it has one result for each."""
    schema = schema_of(op)
    if schema.namespace != "aten" or not schema.name.startswith(PREFIX) or schema.is_mutable:
        return None
    name = schema.name.removeprefix(PREFIX)
    for candidate in overloads("aten", _OTHERWISE_NAMED.get(name, name)):
        other = schema_of(candidate)
        returned = [type_ for type_, _, _ in other.returns]
        if other.is_mutable or returned != ["Tensor"]:
            continue
        names = _named_alike(schema, other) if name in _OTHERWISE_NAMED else _in_places(schema, other)
        if names is not None:
            keywords = frozenset(argument.name for argument in other.arguments if argument.kwarg_only)
            return Single(candidate, names, keywords, {a.name: place for place, a in enumerate(schema.arguments)})
    return None


def _in_places(schema: Schema, other: Schema) -> tuple[str, ...] | None:
    """The names of arguments that are those of a list operator, with defaults after them; None where they are not."""
    wanted, arguments = schema.arguments, other.arguments
    has_more = not all(argument.has_default for argument in arguments[len(wanted) :])
    is_other = [argument.type for argument in arguments[: len(wanted)]] != list(map(_of_one, wanted))
    return None if has_more or is_other else tuple(argument.name for argument in arguments)


def _named_alike(schema: Schema, other: Schema) -> tuple[str, ...] | None:
    """The names of a list operator's arguments, if another one has these, and defaults for all of its own."""
    known = {argument.name: argument for argument in other.arguments}
    names = tuple(argument.name for argument in schema.arguments)
    is_known = all(a.name in known and known[a.name].type == _of_one(a) for a in schema.arguments)
    rest: Sequence[Argument] = [argument for argument in other.arguments if argument.name not in names]
    return names if is_known and all(argument.has_default for argument in rest) else None


def _of_one(argument: Argument) -> str:
    type_ = argument.type
    return type_.removeprefix("List[").removesuffix("]") if type_.startswith("List[") else type_
