"""The base of dovetail's errors: facts in, a message with its code, cause and way out."""

from __future__ import annotations

from typing import ClassVar

_ROW_WIDTH = 9


class DovetailWarning(UserWarning):
    """Something a user should know that does not make the result wrong."""


class DovetailError(Exception):
    """Base of every error that dovetail raises on purpose.

    Class attributes: `code` (stable, unique), `summary` (one sentence, with `{fact}` fields), `because` and
    `way_out` (templates as well). Facts given to the constructor fill the templates; the facts named in `rows`
    are printed as rows of their own when they are present.
    """

    code: ClassVar[str] = "DT-000"
    summary: ClassVar[str] = "{what}"
    because: ClassVar[str] = ""
    way_out: ClassVar[str] = ""
    rows: ClassVar[tuple[str, ...]] = ("operator", "node", "origin", "option", "stage")

    def __init__(self, **facts: object) -> None:
        self.facts: dict[str, object] = facts
        super().__init__(self._message())

    def _message(self) -> str:
        cls = type(self)
        lines = [f"{cls.code} {cls.__name__}: {_fill(cls.summary, self.facts)}"]
        for row in cls.rows:
            if self.facts.get(row):
                lines.append(_row("from" if row == "origin" else row, str(self.facts[row])))
        for label, template in (("because", cls.because), ("try", cls.way_out)):
            if template:
                lines.append(_row(label, _fill(template, self.facts)))
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
