"""What `FILE:NAME` on the command line names: a function or class of the user's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.errors import BadOptionValue


def load_named(text: str, option: str, expected: str) -> Callable[..., Any]:
    """The function or class that `FILE:NAME` names; the file is run for it.

    option: what the user gave it to; expected: an example, for errors.
    Raises: BadOptionValue; what the file raises, which keeps its traceback.
    """

    def bad(reason: str) -> BadOptionValue:
        return BadOptionValue(option=option, value=text, reason=reason, expected=expected)

    place, _, name = text.rpartition(":")
    path = Path(place)
    if not place:
        raise bad("it does not name a function" if Path(text).exists() else "it is not a FILE:NAME")
    if not path.is_file():
        raise bad(f"there is no such file: {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise bad("the file is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise bad(f"the file has no function {name!r}")
    made: Callable[..., Any] = found
    return made
