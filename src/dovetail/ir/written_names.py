"""What of a program is written into source as it is: names, which must be plain, numbers, and text in comments."""

from __future__ import annotations

import keyword

from dovetail.errors import InvalidProgram
from dovetail.ir.program import Program, meta_symbols, symbols_in
from dovetail.ir.sizes import number_text


def check_names(program: Program) -> None:
    """Raise InvalidProgram for a name that would be more than a name in source, whoever made the program.

    Names of values and size symbols are written as they are, and so are names of keyword operands.
    """
    written = [value.name for value in program.inputs]
    written += [name for value in program.inputs for name in meta_symbols(value.meta)]
    for node in program.nodes:
        written += [value.name for value in node.results()]
        written += [name for value in node.results() for name in meta_symbols(value.meta)]
        written += [*node.symbols(), *(name for name, _ in node.kwargs)]
    written += symbols_in(program.outputs)
    for name in dict.fromkeys(written):
        if not name.isidentifier() or keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__")):
            rule = "names are plain names of Python"
            raise InvalidProgram(program=program.name, stage=program.stage.value, rule=rule, detail=repr(name))


def one_line(text: str) -> str:
    """Text for a comment: what would end the line is written as an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def any_number_text(number: complex) -> str:
    """A number as Python source."""
    if isinstance(number, int | float):
        return number_text(number)
    return f"complex({number_text(number.real)}, {number_text(number.imag)})"
