"""Text from a file in generated source: programs run as Python, so names and comments are checked when read.

Value names, size symbols and names of keyword operands are written into source as they are, origins as comments. All
else is written by `repr`, or stands for an object that was looked up.
"""

from __future__ import annotations

import keyword
from typing import Any

from dovetail.artifact.limits import bits_of, check_integer
from dovetail.ir.program import symbols_in
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.ir.sizes import from_json as size_from_json
from dovetail.ir.text import identifier

_MAX_NAME = 1000
_MAX_LINE = 4000


def checked_name(name: object) -> str:
    """The name of a value or a size symbol, as `ir.text.identifier` makes them.

    Raises: ValueError for what is not a plain Python name, or means something else in the source around it.
    """
    text = checked_keyword(name)
    if identifier(text) != text or text == "_":
        raise ValueError(f"{text!r} has another meaning in generated source")
    return text


def checked_keyword(name: object) -> str:
    """The name of a keyword operand. Raises: ValueError for what is not a plain Python name."""
    if not isinstance(name, str) or len(name) > _MAX_NAME or not name.isascii() or not name.isidentifier():
        raise ValueError(f"{name!r} is not a name")
    if keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__")):
        raise ValueError(f"{name!r} is a Python keyword")
    return name


def checked_line(text: object) -> str:
    """Text for a comment or a file name of generated code. Raises: ValueError for text of several lines."""
    if not isinstance(text, str) or len(text) > _MAX_LINE or not all(c.isprintable() for c in text):
        raise ValueError(f"{text!r} is not a single line of text")
    return text


def checked_size(data: Any) -> Scalar:
    """A size, from what `ir.sizes.to_json` made.

    Raises: ValueError for other data, for symbols that are not names, for sizes that could be endless numbers, and for
    operations on numbers that have no result, such as a division by zero.
    """
    size: Scalar = size_from_json(data)
    if type(size) is int:
        check_integer(size)
    if isinstance(size, SizeExpr):
        bits_of(size)
        for name in symbols_in(size):
            checked_name(name)
        _check_results(size)
    return size


def _check_results(size: SizeExpr) -> None:
    """Raise ValueError unless every part that has no symbols is a number."""
    if not any(symbols_in(size)):
        try:
            size.evaluate({})
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ValueError(f"the size {size} is not a number: {error}") from error
        return
    for part in size.args:
        if isinstance(part, SizeExpr):
            _check_results(part)
