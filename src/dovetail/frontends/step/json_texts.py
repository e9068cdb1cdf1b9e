"""JSON of numbers that a step computes: `json.dumps({"loss": loss.item()})` is a text, made of each run's numbers.

Encoders ask `default` for what they do not know, and write a text for a traced number; its quotes are taken away
afterwards, and what stands for the number's own text is put in its place.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.capture.step_recorder import StepRecorder
from dovetail.errors import DovetailError, UnsupportedStep
from dovetail.frontends.step.text_uses import check_texts
from dovetail.torch_compat.traced_numbers import handle_of, is_traced, number_now

_NOT_FINITE = "Out of range float values are not JSON compliant"


def number_as_json(number: Any) -> str:
    """What JSON writes for a number."""
    return json.dumps(number)


@contextlib.contextmanager
def numbers_in_json(recorder: StepRecorder) -> Iterator[None]:
    """While active, what this thread encodes may hold traced numbers.

    Raises: UnsupportedStep where the step fails, and looks into a text of such numbers: that is why, most likely.
    """
    encode, iterencode, thread = json.JSONEncoder.encode, json.JSONEncoder.iterencode, threading.get_ident()
    inside = list[_Numbers]()

    def encoded(self: json.JSONEncoder, o: Any) -> str:
        if threading.get_ident() != thread:
            return encode(self, o)
        numbers = _Numbers(recorder)
        inside.append(numbers)
        try:
            with _asked(self, numbers.text_for):
                return numbers.put_into(encode(self, o))
        finally:
            inside.pop()

    def in_parts(self: json.JSONEncoder, o: Any, *rest: Any, **kwargs: Any) -> Iterator[str]:
        if inside or threading.get_ident() != thread:
            return iterencode(self, o, *rest, **kwargs)
        with _asked(self, lambda number, _: _refuse(recorder)):
            return iter(list(iterencode(self, o, *rest, **kwargs)))

    put: Any = json.JSONEncoder
    put.encode, put.iterencode = encoded, in_parts
    try:
        yield
    except DovetailError:
        raise
    except Exception:
        check_texts(recorder)
        raise
    finally:
        put.encode, put.iterencode = encode, iterencode


@contextlib.contextmanager
def _asked(encoder: json.JSONEncoder, text_for: Callable[[Any, json.JSONEncoder], str]) -> Iterator[None]:
    """While active, an encoder writes a text for each traced number."""
    own, before = vars(encoder), encoder.default
    has_own = "default" in own
    own["default"] = lambda o: text_for(o, encoder) if is_traced(o) else before(o)
    try:
        yield
    finally:
        if has_own:
            own["default"] = before
        else:
            del own["default"]


@dataclass
class _Numbers:
    """The traced numbers that one call writes."""

    recorder: StepRecorder

    def __post_init__(self) -> None:
        self._mark, self._found = secrets.token_hex(8), list[Any]()

    def text_for(self, number: Any, encoder: json.JSONEncoder) -> str:
        """What is written for a number. Raises: ValueError as the encoder does."""
        if not encoder.allow_nan and type(number_now(number)) is float and not math.isfinite(number):
            raise ValueError(_NOT_FINITE)
        self._found.append(number)
        return f"{self._mark}{len(self._found) - 1}."

    def put_into(self, text: str) -> str:
        """The text with what stands for the numbers."""
        if not self._found:
            return text
        self.recorder.texts.made_by_call()
        marks = [self.recorder.text(handle_of(x), number_now(x), number_as_json) for x in self._found]
        return re.sub(rf'"{self._mark}(\d+)\."', lambda found: marks[int(found[1])], text)


def _refuse(recorder: StepRecorder) -> str:
    error = UnsupportedStep(
        what="writes numbers that it computes as JSON in parts (json.dump, iterencode)",
        why="the numbers are not known while the step is captured: their JSON can be one text, which runs make",
        hint="write json.dumps(...) after the step, or write the file in a function marked with dovetail.host_call",
        origin=recorder.here(),
    )
    recorder.refusals.append(error)
    raise error
