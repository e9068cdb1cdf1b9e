"""The base class of all errors: facts in, a message with code, cause and remedy out."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import ClassVar

_ROW_WIDTH = 9
_OWN = f"{Path(__file__).parent.parent}/"


class DovetailWarning(UserWarning):
    """Something worth knowing that does not make the result wrong."""


def warn(warning: DovetailWarning | str) -> None:
    """Issue a warning for the innermost line that is neither dovetail's nor torch's."""
    folders = _OWN, f"{Path(str(sys.modules['torch'].__file__)).parent}/", "<dovetail"
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_passed_over(frame.f_code.co_filename, folders):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, DovetailWarning if isinstance(warning, str) else None, stacklevel=level)


def _is_passed_over(filename: str, folders: tuple[str, ...]) -> bool:
    return filename.startswith(folders) or filename.endswith("/contextlib.py")


class DovetailError(Exception):
    """Base of every error that dovetail raises on purpose.

    Class attributes: `code` (stable, unique); the templates `summary` (one sentence), `because` and `way_out`, with
    `{fact}` fields. The facts passed to the constructor fill the templates; the facts named in `rows` are printed
    on lines of their own if given.
    """

    code: ClassVar[str] = "DT-000"
    summary: ClassVar[str] = "{what}"
    because: ClassVar[str] = ""
    way_out: ClassVar[str] = ""
    rows: ClassVar[tuple[str, ...]] = ("operator", "node", "origin", "option", "stage")

    def __init__(self, **facts: object) -> None:
        self.facts: dict[str, object] = facts
        super().__init__(self._message())

    def offer(self, way_out: str) -> None:
        """Name one way out more, unless the message has it: by its name, or by the option that it sets."""
        option = way_out.rpartition(", ")[2].rstrip(")")
        if way_out not in str(self) and option not in str(self):
            self.facts["also"] = way_out
            self.args = (self._message(),)

    def _message(self) -> str:
        cls = type(self)
        lines = [f"{cls.code} {cls.__name__}: {_fill(cls.summary, self.facts)}"]
        for row in cls.rows:
            fact = self.facts.get(row)
            if fact and str(fact):
                lines.append(_row("from" if row == "origin" else row, str(fact)))
        for label, template in (("because", cls.because), ("try", cls.way_out)):
            if template:
                more = self.facts.get("also") if label == "try" else None
                lines.append(_row(label, _fill(template, self.facts) + (f"; or {more}" if more else "")))
        lines.append(_row("see", f"docs/errors.md#{cls.code}"))
        return "\n".join(lines)


class _Facts(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def _fill(template: str, facts: dict[str, object]) -> str:
    return template.format_map(_Facts(facts))


def _row(label: str, text: str) -> str:
    indent = "\n" + " " * (_ROW_WIDTH + 3)
    return f"  {label:<{_ROW_WIDTH}} {text.replace(chr(10), indent)}"
