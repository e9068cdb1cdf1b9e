"""JSON in the members of a file: one text for each content, and nothing on which JSON readers disagree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from dovetail.artifact.limits import MAX_JSON_BYTES
from dovetail.artifact.regular_file import read_regular
from dovetail.errors import NotSerializable

# Deeper structures are neither written nor read, so that no reader runs out of stack.
MAX_DEPTH = 120
MAX_DIGITS = 1000


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
    """The data that `json_bytes` wrote; or the same with spaces between its tokens.

    Raises: ValueError for other text: more than a gibibyte, keys that come twice, NaN, numbers that no float holds,
    integers of thousands of digits, halves of characters, and deep nesting.
    """
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has {len(content)} bytes, and at most {MAX_JSON_BYTES} are read")
    try:
        data = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(data)
    if b"\\ud" in content or b"\\uD" in content:
        _refuse_halves(data)
    return data


def read_json_file(path: Path) -> Any:
    """The data in a file of JSON that people may have laid out.

    Raises: ValueError as `read_json`, and for a file that is too large; OSError for what is not a regular file.
    """
    return read_json(read_regular(path, MAX_JSON_BYTES))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large for a number")
    return number


def _short(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it has an integer of {len(text)} digits")
    return int(text)


def _refuse_halves(data: object) -> None:
    """Raise ValueError (UnicodeEncodeError is one) for half of a surrogate pair in a text, which nothing can print."""
    if isinstance(data, str):
        data.encode("utf-8")
    elif isinstance(data, dict):
        for key, item in data.items():
            _refuse_halves(key)
            _refuse_halves(item)
    elif isinstance(data, list):
        for item in data:
            _refuse_halves(item)


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
