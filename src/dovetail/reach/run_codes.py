"""Which of the user's code ran in a call, and which functions were met that could have led to it."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

from dovetail.reach.codes import codes_inside


class RunCodes:
    """Code that ran, beside functions that the call could reach.

    ran: the code, each with its global variables.
    """

    def __init__(self) -> None:
        self.ran: dict[CodeType, dict[str, Any]] = {}
        self._functions: dict[CodeType, list[FunctionType]] = {}
        self._inside: set[CodeType] = set()

    def meet(self, function: FunctionType) -> None:
        """The call can reach a function."""
        self._functions.setdefault(function.__code__, []).append(function)

    def run(self, code: CodeType, known: dict[str, Any]) -> None:
        """Code runs. known: its global variables."""
        self.ran[code] = known
        self._inside |= codes_inside(code)

    def functions(self, code: CodeType) -> list[FunctionType]:
        """The functions with this code that were met."""
        return self._functions.get(code, [])

    def lost(self) -> list[CodeType]:
        """Code that ran though no function with it was met, and that is no part of other code that ran."""
        return [code for code in self.ran if code not in self._functions and code not in self._inside]
