"""What a file may put into generated source: programs are run as Python, so names and remarks are checked when read.

Value names, size symbols and names of keyword operands are written into source as they are, origins as comments. All
else is written by `repr`, or stands for an object that was looked up.
"""

from __future__ import annotations

import keyword
from typing import Any

from dovetail.ir.program import symbols_in
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.ir.sizes import from_json as size_from_json
from dovetail.ir.text import identifier

_MAX_NAME = 1000
_MAX_LINE = 4000


def checked_name(name: object) -> str:
    """The name of a value or a size symbol, as `ir.text.identifier` makes them.

    Raises: ValueError for what is no plain Python name, or means something else in the source around it.
    """
    text = checked_keyword(name)
    if identifier(text) != text or text == "_":
        raise ValueError(f"{text!r} has a meaning of its own in generated source")
    return text


def checked_keyword(name: object) -> str:
    """The name of a keyword operand. Raises: ValueError for what is no plain Python name."""
    if not isinstance(name, str) or len(name) > _MAX_NAME or not name.isascii() or not name.isidentifier():
        raise ValueError(f"{name!r} is no name")
    if keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__")):
        raise ValueError(f"{name!r} is a word of Python's")
    return name


def checked_line(text: object) -> str:
    """Text for a comment or a file name of generated code. Raises: ValueError for text of several lines."""
    if not isinstance(text, str) or len(text) > _MAX_LINE or not all(c.isprintable() for c in text):
        raise ValueError(f"{text!r} is no text of one line")
    return text


def checked_size(data: Any) -> Scalar:
    """A size, from what `ir.sizes.to_json` made.

    Raises: ValueError for other data, and for symbols that are no names.
    """
    size: Scalar = size_from_json(data)
    if isinstance(size, SizeExpr):
        for name in symbols_in(size):
            checked_name(name)
    return size
