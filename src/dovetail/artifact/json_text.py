"""JSON as members of a file hold it: one text for each content, and nothing that JSON readers disagree about."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from dovetail.errors import NotSerializable

# Deeper structures are neither written nor read, so that no reader runs out of stack.
MAX_DEPTH = 120


def json_bytes(data: object) -> bytes:
    """The data as JSON in UTF-8.

    Raises: NotSerializable for what JSON cannot say: objects, NaN, and structures nested deeper than `MAX_DEPTH`.
    """
    try:
        _check_depth(data)
        return json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSerializable(what="a part of a program", reason=error, hint="keep plain data in it") from error


def read_json(content: bytes) -> Any:
    """The data that `json_bytes` wrote.

    Raises: ValueError for other text: keys that come twice, NaN, deep nesting, and spaces between tokens.
    """
    try:
        data = json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(data)
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one key twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_depth(data: object) -> None:
    level: list[object] = [data]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list | tuple):
                inner += item
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
