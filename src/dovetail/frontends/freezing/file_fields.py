"""Fields of a file's index, each as it must be."""

from __future__ import annotations

import inspect
from typing import Any

from dovetail.artifact.operand_json import operand_from_json
from dovetail.ir.program import Value

_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


def parameter_of(entry: Any) -> inspect.Parameter:
    """A parameter of a signature."""
    default = [operand_from_json(item, no_value) for item in list_of(entry["default"])]
    if len(default) > 1:
        raise ValueError("a parameter has more than one default")
    kind = _KINDS[text_of(entry["kind"])]
    return inspect.Parameter(text_of(entry["name"]), kind, default=default[0] if default else inspect.Parameter.empty)


def no_value(name: str) -> Value:
    """For operands that name no values."""
    raise ValueError(f"value {name!r} is used where no values are allowed")


def text_of(data: object) -> str:
    """A text. Raises: ValueError, as the others do for anything else."""
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is not a text")
    return data


def texts_of(data: object) -> list[str]:
    """A list of texts."""
    return [text_of(item) for item in list_of(data)]


def list_of(data: object) -> list[Any]:
    """A list."""
    if not isinstance(data, list):
        raise ValueError(f"{data!r} is not a list")
    return data


def number_of(data: object, below: int = 1 << 16) -> int:
    """A whole number from 0, below a limit."""
    if type(data) is not int or not 0 <= data < below:
        raise ValueError(f"{data!r} is not a number below {below}")
    return data
