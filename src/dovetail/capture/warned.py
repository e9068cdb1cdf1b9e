"""Warnings of code that is recorded: which line they are of, and what shows them.

Modes lie between a function of torch and its caller, so that a `stacklevel` would name a line of dovetail. Whether a
warning is shown is left to whoever gets it: filters, and the registry of the module that was warned, decide when it is
passed on, as they do in eager mode.

Source: `setup_context` and `warn_explicit` (Python/_warnings.c) of Python.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

from dovetail.ir.provenance import is_own_file

_REGISTRY = "__warningregistry__"
_BETWEEN = ("/torch/overrides.py", "/contextlib.py")  # a mode and its caller
_IMPORTING = ("importlib", "_bootstrap")
Note: TypeAlias = "Callable[[Warned | Shown, Any], None]"


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning that is to be shown, unless filters say otherwise by then; called with its text, or the warning.

    told: globals of the module that is warned.
    """

    category: type[Warning]
    filename: str
    line: int
    module: str | None
    source: Any = field(compare=False)
    told: dict[str, Any] | None = field(compare=False, repr=False)

    def __call__(self, message: Any) -> None:
        """Warn. Raises: the warning, where filters say so."""
        keywords: dict[str, Any] = {}
        if self.module is not None:  # for None, Python shows nothing
            keywords["module"] = self.module
        if self.told is not None:
            keywords["registry"] = self.told.setdefault(_REGISTRY, {})
        _warn_explicit(message, self.category, self.filename, self.line, source=self.source, **keywords)

    def may_be_raised(self, message: Any) -> bool:
        """Whether filters may say now that it is raised. message: None where it is not known yet."""
        text = None if message is None else str(message)
        module = self.module if self.module is not None else self.filename.removesuffix(".py")
        for action, wanted, category, of_module, line in warnings.filters:
            is_for_it = issubclass(self.category, category) and line in (0, self.line)
            if not is_for_it or (of_module is not None and not _matches(of_module, module)):
                continue
            if wanted is None or (text is not None and _matches(wanted, text)):
                return action == "error"
            if text is None and action == "error":
                return True
        return getattr(warnings, "defaultaction", "default") == "error"


@dataclass(frozen=True, slots=True)
class Shown:
    """A warning that filters of the recorded code itself let through; called with its text, or the warning."""

    category: type[Warning]
    filename: str
    line: int

    def __call__(self, message: Any) -> None:
        """Show it."""
        warnings.showwarning(message, self.category, self.filename, self.line)


@contextmanager
def warnings_noted(note: Note | None = None) -> Iterator[None]:
    """While active, `note` gets the warnings of this thread, and what they say; without it they are shown at once.

    Not those that become errors, nor those that the recorded code keeps for itself (`catch_warnings(record=True)`).
    """
    noting = _Noting(note)

    def warn(*args: Any, **keywords: Any) -> None:
        noting.warn(*args, **keywords)

    def warn_explicit(*args: Any, **keywords: Any) -> None:
        noting.warn_explicit(*args, **keywords)

    def show(shown: warnings.WarningMessage) -> None:
        noting.show(shown)

    put: Any = warnings
    ours = {"warn": warn, "warn_explicit": warn_explicit, "_showwarnmsg": show}  # functions, so that none is guarded
    before = {name: getattr(warnings, name) for name in ours}
    for name, function in ours.items():
        setattr(put, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(put, name, function)


class _Noting:
    """What stands in for functions of `warnings`, in one thread."""

    def __init__(self, note: Note | None) -> None:
        self._note = note
        self._thread = threading.get_ident()
        self._filters = warnings.filters  # another list where the code that is recorded has filters of its own
        self._way = self._showing()

    def warn(
        self,
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        *,
        skip_file_prefixes: Sequence[str] = (),
    ) -> None:
        """`warnings.warn`."""
        kind = type(message) if isinstance(message, Warning) else UserWarning if category is None else category
        if not (isinstance(kind, type) and issubclass(kind, Warning) and isinstance(stacklevel, int)):
            _warn(message, category, stacklevel, source)  # which says what is wrong
            return
        level = max(2, stacklevel) if skip_file_prefixes else stacklevel
        frame = _warned_frame(sys._getframe(1), level, tuple(skip_file_prefixes))
        if frame is None:
            place, told = ("<sys>", 1, "sys"), vars(sys)
        else:
            name = frame.f_globals.get("__name__")
            place, told = (frame.f_code.co_filename, frame.f_lineno, name or "<string>"), frame.f_globals
        self._warned(Warned(kind, *place, source, told), message)

    def warn_explicit(
        self,
        message: Any,
        category: Any,
        filename: str,
        lineno: int,
        module: str | None = None,
        registry: Any = None,
        module_globals: Any = None,
        source: Any = None,
    ) -> None:
        """`warnings.warn_explicit`."""
        kind = type(message) if isinstance(message, Warning) else category
        told = None if registry is None else {_REGISTRY: registry}
        self._warned(Warned(kind, filename, lineno, module, source, told), message)

    def _warned(self, warned: Warned, message: Any) -> None:
        is_others = threading.get_ident() != self._thread or self._has_filters or warned.may_be_raised(message)
        if self._note is None or is_others:
            warned(message)
        else:
            self._note(warned, message)

    def show(self, shown: warnings.WarningMessage) -> None:
        """`warnings._showwarnmsg`: what C++ warns of arrives here alone, and what filters of the code let through."""
        if threading.get_ident() != self._thread or self._showing() != self._way:
            _showwarnmsg(shown)
            return
        kind = shown.category
        frame = _frame_at(shown.filename, shown.lineno)
        told = _eager_frame(frame) if frame is not None else None
        place = (shown.filename, shown.lineno) if told is None else (told.f_code.co_filename, told.f_lineno)
        if self._note is None:
            _showwarnmsg(warnings.WarningMessage(shown.message, kind, *place, source=shown.source))
            return
        if self._has_filters:
            self._note(Shown(kind, *place), shown.message)
            return
        if frame is not None:  # so that it is shown when it is passed on
            text = str(shown.message)
            for key in ((text, kind, shown.lineno), (text, kind, 0), (text, kind)):
                frame.f_globals.get(_REGISTRY, {}).pop(key, None)
            getattr(warnings, "onceregistry", {}).pop((text, kind), None)
        found = {} if told is None else told.f_globals
        self._note(Warned(kind, *place, found.get("__name__"), shown.source, told and found), shown.message)

    @property
    def _has_filters(self) -> bool:
        return warnings.filters is not self._filters

    @staticmethod
    def _showing() -> tuple[Any, Any]:
        return warnings.showwarning, vars(warnings).get("_showwarnmsg_impl")


_warn, _warn_explicit = warnings.warn, warnings.warn_explicit
_showwarnmsg: Callable[[warnings.WarningMessage], None] = vars(warnings)["_showwarnmsg"]


def _matches(wanted: Any, text: str) -> bool:
    """Whether the pattern of a filter is for a text; Python has some as plain texts."""
    return wanted == text if isinstance(wanted, str) else wanted.match(text) is not None


def _warned_frame(frame: FrameType | None, level: int, skipped: tuple[str, ...]) -> FrameType | None:
    """The frame that `stacklevel` names in eager mode; None beyond the outermost. frame: what calls `warnings.warn`."""
    frame = _eager_frame(frame)
    counts_all = level <= 0 or (frame is not None and _is_importing(frame))
    for _ in range(level - 1):
        frame = _caller(frame)
        while frame is not None and not counts_all and (_is_importing(frame) or _is_in(frame, skipped)):
            frame = _caller(frame)
    return frame


def _eager_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that eager mode has, too, from here on outwards."""
    while frame is not None and (is_own_file(frame.f_code.co_filename) or frame.f_code.co_filename.endswith(_BETWEEN)):
        frame = frame.f_back
    return frame


def _caller(frame: FrameType | None) -> FrameType | None:
    """What calls a frame in eager mode, where no mode lies between.

    A function of torch that finds a mode hands itself over to it, and is called again by that: it has two frames.
    """
    if frame is None:
        return None
    back = frame.f_back
    while back is not None and is_own_file(back.f_code.co_filename):
        beyond = _eager_frame(back)
        is_again = beyond is not None and beyond.f_code is frame.f_code
        back = beyond.f_back if beyond is not None and is_again else beyond
    return back


def _frame_at(filename: str, line: int) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (filename, line):
        frame = frame.f_back
    return frame


def _is_importing(frame: FrameType) -> bool:
    return all(part in frame.f_code.co_filename for part in _IMPORTING)


def _is_in(frame: FrameType, prefixes: tuple[str, ...]) -> bool:
    return bool(prefixes) and frame.f_code.co_filename.startswith(prefixes)
