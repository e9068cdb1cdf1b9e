"""Traced Python numbers among the arguments of operators: which operators take them, and what the others get."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.traced_numbers import fixed_number, is_traced, number_now

_SEQUENCES = (list, tuple)
_SHAPED_BY_NUMBERS = frozenset({"arange", "range"})
_SIZE_TYPES = frozenset({"int", "Optional[int]", "List[int]", "Optional[List[int]]"})
# Where an operator takes a tensor, Python may give it a number.
_NUMBER_TYPES = frozenset({"number", "Optional[number]", "List[number]", "Tensor", "Optional[Tensor]"})


def has_traced(items: Sequence[Any]) -> bool:
    """Whether a traced number is among the items, or in a list among them."""
    for x in items:  # noqa: SIM110 (a generator takes twice as long, and this is asked for each operator)
        if is_traced(x) or (issubclass(type(x), _SEQUENCES) and any(map(is_traced, x))):
            return True
    return False


def concrete(argument: Any) -> Any:
    """An operator argument with the numbers as they are now, for fakes."""
    return _each_traced(argument, number_now)


def settled(
    func: Overload,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    as_size: Callable[[Any], Any] = fixed_number,
    taken: Collection[int] = (),
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments, with traced numbers as sizes, or fixed, where the operator takes no number as an operand.

    as_size: gives a size for a traced number. taken: ids of traced numbers that are operands wherever they stand.
    """
    if not (has_traced(args) or has_traced(tuple(keywords.values()))):
        return args, keywords
    is_shaped_by = schema_of(func).name in _SHAPED_BY_NUMBERS
    declared = schema_of(func).arguments
    as_number = {a.name for a in declared if a.type in _NUMBER_TYPES and not is_shaped_by}
    sizes = {a.name for a in declared if (is_shaped_by or a.type in _SIZE_TYPES) and not a.is_fixed}

    def settle(name: str, argument: Any) -> Any:
        if name in as_number or id(argument) in taken:
            return argument
        return _each_traced(argument, as_size if name in sizes else fixed_number)

    pairs = zip(declared, args, strict=False)
    return [settle(a.name, x) for a, x in pairs], {name: settle(name, x) for name, x in keywords.items()}


def _each_traced(argument: Any, give: Callable[[Any], Any]) -> Any:
    """An operator argument with something else for each traced number."""
    if is_traced(argument):
        return give(argument)
    if issubclass(type(argument), _SEQUENCES) and any(map(is_traced, argument)):
        return type(argument)(_each_traced(item, give) for item in argument)
    return argument
