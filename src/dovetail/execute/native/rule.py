"""A rule: which arguments of an operator formulas read, and which formulas may give its bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.execute.native.formula import Formula


@dataclass(frozen=True, slots=True)
class Rule:
    """operands: names of the arguments that the formulas read. candidates: formulas, the likely ones first.

    fixed: arguments that must have this value. by_value: the argument that the candidates depend on, which must be
    written in the program; `candidates` is empty then, and `of_value` has them. avoided: for a number, a value for
    which no formula holds, so that it is left to `aten`: the last elements get other bits than those that fill vectors,
    or a whole number other bits than a fraction (minus 0 has another sign than minus 0.0). or_else: the rule for a node
    with other arguments. most: the elements up to which one thread of torch computes them, where the kernel decides
    that by itself, and the last elements of each share are computed otherwise. is_fill: whether all other arguments
    only describe the result.
    """

    operands: tuple[str, ...]
    candidates: tuple[Formula, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    by_value: str = ""
    of_value: Mapping[float, tuple[Formula, ...]] = field(default_factory=dict)
    avoided: Mapping[str, float] = field(default_factory=dict)
    or_else: Rule | None = None
    most: int | None = None
    is_fill: bool = False


TWO_BY_COUNT = "two by count"
"""An operand that is no argument: 2, divided by the number of elements."""
