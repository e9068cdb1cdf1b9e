"""What an operator computes for one element, as a formula over its operands.

A formula is data: it is compared, printed and compiled. Every operation is rounded once, as IEEE 754 says; `fma` is the
only one that multiplies and adds with a single rounding.

A vector function is called on many elements: one of MKL's, or of Sleef's, as torch's library has them. Torch takes two
vectors of the processor at once, and computes the elements after the last full pair one by one, where it calls libm
instead of Sleef: `is_rest` tells these elements from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_PLACES = frozenset({"rest", "rest of one"})
TOTAL, LARGEST = "total", "largest"
ROW_SUMS = frozenset({TOTAL, LARGEST})
"""Operations over the elements of a row: their sum, and the largest of them, or NaN where there is one. What they give
is the same for all elements of the row. See `row_loop`.
"""

AT = "at"
"""Whether an element is the one of its row whose number an operand, a whole number for each row, gives."""

TRUTHS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", AT}) | _PLACES
"""Operations whose result is a truth value."""


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """An operation on parts. place: of an operand, in the order of the rule's. number: of a constant.

    Formulas are compared, and looked up, many times a program: parts that they share, or that differ, are passed over.
    """

    operation: str
    parts: tuple[Formula, ...] = ()
    place: int = 0
    number: float = 0.0
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((*_own(self), *map(hash, self.parts))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Formula):
            return NotImplemented
        return self._hash == hash(other) and _own(self) == _own(other) and self.parts == other.parts

    def __repr__(self) -> str:
        """Each part once, however often it is used: it is read before what it is part of."""
        numbers: dict[Formula, int] = {}
        lines = list[str]()

        def number(formula: Formula) -> int:
            if formula not in numbers:
                parts = [number(part) for part in formula.parts]
                numbers[formula] = len(lines)
                lines.append(" ".join(map(str, (*_own(formula), *parts))))
            return numbers[formula]

        number(self)
        return f"Formula({'; '.join(lines)})"

    def __add__(self, other: Formula) -> Formula:
        return Formula("add", (self, other))

    def __sub__(self, other: Formula) -> Formula:
        return Formula("sub", (self, other))

    def __mul__(self, other: Formula) -> Formula:
        return Formula("mul", (self, other))

    def __truediv__(self, other: Formula) -> Formula:
        return Formula("div", (self, other))

    def __neg__(self) -> Formula:
        return Formula("neg", (self,))

    def __str__(self) -> str:
        if self.operation == "operand":
            return "abcdefgh"[self.place]
        if self.operation == "constant":
            return repr(self.number)
        return f"{self.operation}({', '.join(map(str, self.parts))})"


def _own(formula: Formula) -> tuple[str, int, str]:
    """What a formula says beside its parts; 0.0 is not -0.0 here."""
    return formula.operation, formula.place, repr(formula.number)


def operand(place: int) -> Formula:
    """The operand at a place."""
    return Formula("operand", place=place)


def substituted(formula: Formula, numbers: Mapping[int, float]) -> Formula:
    """The formula with constants for operands at some places; the other operands keep their order, without gaps."""
    known = tuple((place, constant(number)) for place, number in numbers.items())
    return _substituted(formula, known) if known else formula


@lru_cache(maxsize=4096)
def _substituted(formula: Formula, numbers: tuple[tuple[int, Formula], ...]) -> Formula:
    if formula.operation == "operand":
        known = dict(numbers)
        if formula.place in known:
            return known[formula.place]
        return operand(formula.place - sum(place < formula.place for place in known))
    parts = tuple([_substituted(part, numbers) for part in formula.parts])
    return Formula(formula.operation, parts, formula.place, formula.number) if parts else formula


def constant(number: float) -> Formula:
    """A number, rounded to the dtype of the loop."""
    return Formula("constant", number=number)


def fma(a: Formula, b: Formula, c: Formula) -> Formula:
    """a * b + c, rounded once."""
    return Formula("fma", (a, b, c))


def total(a: Formula) -> Formula:
    """The sum over a row, in any order."""
    return Formula(TOTAL, (a,))


def largest(a: Formula) -> Formula:
    """The largest element of a row."""
    return Formula(LARGEST, (a,))


def at(a: Formula) -> Formula:
    """Whether an element is the one of its row that a whole number says."""
    return Formula(AT, (a,))


def columns() -> Formula:
    """How many elements a row has."""
    return Formula("columns")


def exponent(a: Formula) -> Formula:
    """Of a normal number above 0, the power of two that it is at least, as a number."""
    return Formula("exponent", (a,))


def fraction(a: Formula) -> Formula:
    """Of a normal number above 0, what that power is multiplied by: from 1 to less than 2."""
    return Formula("fraction", (a,))


def compared(how: str, a: Formula, b: Formula) -> Formula:
    """how: lt, le, gt, ge, eq (false where one of them is not a number), or ne (true there)."""
    return Formula(how, (a, b))


def either(a: Formula, b: Formula) -> Formula:
    """Whether one of two truth values holds."""
    return Formula("or", (a, b))


def both(a: Formula, b: Formula) -> Formula:
    """Whether both of two truth values hold."""
    return Formula("and", (a, b))


def select(condition: Formula, a: Formula, b: Formula) -> Formula:
    """a where the condition holds, else b."""
    return Formula("select", (condition, a, b))


def absolute(a: Formula) -> Formula:
    """The element without its sign."""
    return Formula("abs", (a,))


def root(a: Formula) -> Formula:
    """The square root, correctly rounded."""
    return Formula("root", (a,))


def rounded(how: str, a: Formula) -> Formula:
    """A whole number near the element. how: floor, ceil, trunc, rint (to the nearest, halves to even ones)."""
    return Formula(how, (a,))


def two_to(a: Formula) -> Formula:
    """2 to the power of a whole number between -127 and 128, of float32; 1 where the element is not a number."""
    return Formula("two to", (a,))


def flipped(a: Formula, b: Formula) -> Formula:
    """a, with the other sign where b has the sign bit."""
    return Formula("flip", (a, b))


def vector(name: str, a: Formula) -> Formula:
    """A vector function of MKL: Sqrt, Exp, Tanh, Erf, Ln, Sin, Cos."""
    return Formula(f"vector {name}", (a,))


def sleef(name: str, a: Formula) -> Formula:
    """A vector function of Sleef, whose results are wrong by 1.0 units in the last place at most: exp, expm1, log1p,
    erf, tanh.
    """
    return Formula(f"vector sleef {name}", (a,))


def libm(name: str, a: Formula) -> Formula:
    """A function of C's library. It is called for the elements of `is_rest`; for the others it gives anything."""
    return Formula(f"vector libm {name}", (a,))


def is_rest() -> Formula:
    """Whether an element comes after the last full pair of vectors, of those that one thread works on."""
    return Formula("rest")


def by_place(vectors: Formula, rest: Formula) -> Formula:
    """One formula for elements that fill pairs of vectors, another one for the rest."""
    return select(is_rest(), rest, vectors)


def by_place_of_one(vectors: Formula, rest: Formula) -> Formula:
    """The same for single vectors: the compiler of torch made vectors of a loop over the rest."""
    return select(Formula("rest of one"), rest, vectors)


def is_by_place(formula: Formula) -> bool:
    """Whether it is made of one formula for elements that fill vectors, its third part, and one for the rest."""
    return formula.operation == "select" and formula.parts[0].operation in _PLACES


@lru_cache(maxsize=4096)
def reads_place(formula: Formula) -> bool:
    """Whether it is another one in the rest than elsewhere."""
    return formula.operation in _PLACES or any(map(reads_place, formula.parts))


@lru_cache(maxsize=4096)
def calls_nothing(formula: Formula) -> bool:
    """Whether it is part of a loop as it stands, the same for all places."""
    is_own = formula.operation not in _PLACES and not formula.operation.startswith("vector ")
    return is_own and all(map(calls_nothing, formula.parts))


def eagers(name: str, a: Formula) -> Formula:
    """A function that is Sleef's for elements that fill pairs of vectors, and of C's library for the rest."""
    return by_place(sleef(name, a), libm(name, a))


def is_nan(a: Formula) -> Formula:
    """Whether the element is not a number."""
    return compared("ne", a, a)
