"""Texts that a recorded step makes of numbers and tensors which are not known yet.

A text is put together by C, which only joins: so each number becomes a mark in the text, of characters that no other
text has, and whoever may have the text later (a host call, the step's caller) gets the marks replaced in each run.
`%` asks for a plain number, and gets a long one, which is found again in the text. Where in the user's code texts
came up is noted: `dovetail.frontends.step.text_uses` looks at what the code does with them.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch

from dovetail.ir.provenance import is_library_file
from dovetail.torch_compat.traced_maths import Formatting

_OWN = __file__.rpartition("/dovetail/")[0] + "/dovetail/"
_JSON = json.__file__.rpartition("/")[0] + "/"
_TORCH = torch.__file__.rpartition("/")[0]
_ASKED_BY_C = tuple(f"{_TORCH}/{name}" for name in ("__init__.py", "_tensor.py", "overrides.py", "utils/_device.py"))
_BUILT_IN = (list, tuple, dict, set, frozenset)
_DEPTH = 4

Convert: TypeAlias = "Callable[[Any], str]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. item: what it shows, a traced number or a tensor. convert: makes the part of the real one."""

    item: Any
    convert: Convert


@dataclass(frozen=True, slots=True)
class Source:
    """An instruction whose result is, or holds, a text; or an argument of a function.

    variable: the argument, or "". holds: it is a container with texts in it.
    """

    code: CodeType
    at: int
    variable: str = ""
    holds: bool = False


class Texts:
    """The texts of one recording.

    hosts: instructions that gave texts to host calls. calls: those that called functions of the user's. formats_at: set
    by who knows it, the formats of the `%` that a frame is in the middle of. lost: a text that went to a library.
    has_whole_numbers: whether some are of whole numbers that data decide. asks_whole_numbers, to be set: whether these
    are asked for instead, so that texts of them are what they are in every call (names of layers, say).
    """

    def __init__(self) -> None:
        self.know_by(new_mark())
        self._pieces: list[Piece] = []
        self._long: list[tuple[float, Piece, Sequence[str]]] = []
        self.sources: dict[Source, None] = {}
        self.variables: dict[CodeType, Mapping[str, Any]] = {}
        self.hosts: set[tuple[CodeType, int]] = set()
        self.calls: set[tuple[CodeType, int]] = set()
        self.makers: set[tuple[CodeType, int]] = set()
        self.lost: Source | None = None
        self.has_whole_numbers = False
        self.asks_whole_numbers = False
        self.formats_at: Callable[[FrameType], Sequence[str]] = lambda _: ()

    def know_by(self, mark: str) -> None:
        """Let texts have this mark. Recordings of one call have one, so that they read the same attributes."""
        self._mark = mark
        self._pattern = re.compile(re.escape(mark) + r"(\d+)\u27eb")

    @property
    def items(self) -> list[Any]:
        """What the texts show."""
        return [x.item for x in (*self._pieces, *(piece for _, piece, _ in self._long))]

    def __bool__(self) -> bool:
        return bool(self._pieces or self._long)

    # --- making

    def mark_for(self, item: Any, convert: Convert) -> str | None:
        """A text that stands for what an item will be converted to; None where no code of the user's asks for it."""
        frame = _asking_frame()
        if frame is None:
            return None
        self._came_up(frame)
        self._pieces.append(Piece(item, convert))
        return f"{self._mark}{len(self._pieces) - 1}\u27eb"

    def long_number(self, item: Any, now: Any) -> Any:
        """A number that stands for another one in a text that `%` makes; None where it is not `%` that asks."""
        frame = _asking_frame()
        formats = [] if frame is None else self.formats_at(frame)
        if frame is None or not formats:
            return None
        self._came_up(frame)
        digits = Random(f"{self._mark}{len(self._long)}").randrange(10**15)
        number = float(f"{1 + digits / 10**15:.15f}e{150 + len(self._long)}")
        formats = [text for text in formats if text[-1] not in "srac"]
        self._long.append((number, Piece(item, str), formats))
        return number if isinstance(now, float) else int(number)

    def _came_up(self, frame: FrameType, *, holds: bool = False) -> None:
        self.sources[Source(frame.f_code, frame.f_lasti, "", holds)] = None
        self.variables[frame.f_code] = frame.f_globals

    # --- finding

    def parts(self, text: object) -> list[str | Piece] | None:
        """What a text consists of; None for one that stands for nothing. Raises: LookupError, see `_split`."""
        if not self or not isinstance(text, str):
            return None
        found: list[str | Piece] = []
        at = 0
        for match in self._pattern.finditer(text):
            found += self._split(text[at : match.start()])
            found.append(self._pieces[int(match[1])])
            at = match.end()
        found += self._split(text[at:])
        return found if any(isinstance(part, Piece) for part in found) else None

    def settled(self, convert: Convert, ask: Callable[[Any], Any]) -> Convert:
        """A format of which numbers are part (how wide it writes): `ask` gives these numbers, and may raise."""
        parts = self.parts(convert.spec) if isinstance(convert, Formatting) else None
        if parts is None:
            return convert
        return Formatting("".join(x if isinstance(x, str) else x.convert(ask(x.item)) for x in parts))

    def _split(self, text: str) -> list[str | Piece]:
        """A text without marks, with pieces in the place of long numbers.

        Raises: LookupError where it is not known with which format a number was written.
        """
        for number, piece, formats in self._long:
            shown = {f: _written(f, number) for f in formats}
            fitting = [f for f, written in shown.items() if written and written in text]
            longest = max((shown[f] for f in fitting), key=len, default="")
            alike = [f for f in fitting if shown[f] == longest]
            if not alike:
                if any(len(written) > 20 and written[:12] in text for written in shown.values()):
                    raise LookupError(text)
                continue
            if len(alike) > 1:
                raise LookupError(text)
            before, _, after = text.partition(longest)
            made = Piece(piece.item, _Percent(alike[0]))
            return [*self._split(before), made, *self._split(after)]
        return [text] if text else []

    def hold(self, value: Any, depth: int = _DEPTH) -> bool:
        """Whether a value is a text that stands for another one, or holds such a text."""
        if not self:
            return False
        if isinstance(value, str):
            try:
                return self.parts(value) is not None
            except LookupError:
                return True
        if depth and type(value) in _BUILT_IN:
            items: Iterator[Any] = iter(value)
            return any(self.hold(x, depth - 1) for x in items) or (
                type(value) is dict and any(self.hold(x, depth - 1) for x in value.values())
            )
        return False

    # --- following

    def follow(self, frame: FrameType, event: str, argument: Any) -> None:
        """A frame of the user's begins, or ends with a result."""
        if not self or is_library_file(frame.f_code.co_filename):
            return
        code, caller = frame.f_code, frame.f_back
        if event == "call":
            if caller is not None:
                self.calls.add((caller.f_code, caller.f_lasti))
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0xC) * 2]
            held = frame.f_locals
            for name in names:
                if name in held and self.hold(held[name]):
                    self.sources[Source(code, 0, name, not isinstance(held[name], str))] = None
                    self.variables[code] = frame.f_globals
        elif event == "return" and self.hold(argument):
            if caller is not None:
                self.calls.add((caller.f_code, caller.f_lasti))
            if caller is not None and not is_library_file(caller.f_code.co_filename):
                self._came_up(caller, holds=not isinstance(argument, str))
            elif caller is None or not caller.f_code.co_filename.startswith(_OWN):
                self.lost = Source(code, frame.f_lasti)

    def made_by_call(self) -> None:
        """The user's code calls a function that makes a text."""
        frame = _asking_frame()
        if frame is not None:
            self.makers.add((frame.f_code, frame.f_lasti))

    def given_to_host(self) -> None:
        """The user's innermost frame makes a host call."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_library_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self.hosts.add((frame.f_code, frame.f_lasti))


def new_mark() -> str:
    """What no other text has."""
    return f"\u27ea{secrets.token_hex(8)}:"


class _Percent:
    """Writes a number with a format of `%`."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __call__(self, number: Any) -> str:
        text: str = self._form % number
        return text


def _written(form: str, number: float) -> str:
    try:
        return form % (number if form[-1] in "eEfFgG" else int(number))
    except (TypeError, ValueError, OverflowError):
        return ""


def _asking_frame() -> FrameType | None:
    """The user's frame whose instruction asks, through C alone; None where a library's code asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, _JSON, *_ASKED_BY_C)):
        frame = frame.f_back
    if frame is None or is_library_file(frame.f_code.co_filename):
        return None
    return frame
