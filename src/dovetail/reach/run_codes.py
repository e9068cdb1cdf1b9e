"""Which of the user's code ran in a call, and which functions were met that could have led to it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from dovetail.reach.codes import arguments_of, codes_inside, is_made_by, writes_outer_variables
from dovetail.reach.contents import in_cell, is_compared_by_contents
from dovetail.reach.libraries import is_library_class
from dovetail.reach.values import PLAIN


class RunCodes:
    """Code that ran, beside functions that the call could reach.

    ran: the code, each with its global variables.
    """

    def __init__(self) -> None:
        """The call begins: what runs now does not belong to it."""
        self.ran: dict[CodeType, dict[str, Any]] = {}
        self._functions: dict[CodeType, list[FunctionType]] = {}
        self._inside: set[CodeType] = set()
        self._callers = frozenset(map(id, _outwards(sys._getframe(1))))

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

    def held_by(self, frame: FrameType) -> list[Any]:
        """What a function that begins to run has, where nothing that was read led to it: hooks that C keeps, say.

        The function itself, where it can be told, or what it closes over; and objects of the user's that it was given,
        among them that of a bound method.
        """
        code = frame.f_code
        if self.functions(code) or self._is_inside_its_maker(frame):
            return []
        known = frame.f_locals
        outer = [known.get(name) for name in code.co_freevars]
        itself = [x for x in outer if type(x) is FunctionType and x.__code__ is code]
        if not itself and writes_outer_variables(code):  # its cells are needed, before it changes what they hold
            itself = _functions_with(code, outer)
        given = [known.get(name) for name in arguments_of(code)]
        return [*(itself or outer), *filter(_is_object_of_user, given)]

    def _is_inside_its_maker(self, frame: FrameType) -> bool:
        """Whether the code that makes the function is running in this call: it has all that the function closes over.

        Code that runs outside the call may have made it as well: the function that defines hooks, and then calls the
        step. The call does not lead to what that one has.
        """
        for maker in _outwards(frame.f_back):
            if id(maker) in self._callers:
                return False
            if is_made_by(frame.f_code, maker.f_code):
                return True
        return False


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and all that wait for it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _functions_with(code: CodeType, outer: list[Any]) -> list[FunctionType]:
    """The functions with some code whose outer variables hold these values. Cost: that of looking at every object."""
    found = [x for x in gc.get_referrers(code) if type(x) is FunctionType and x.__code__ is code]
    held = [[in_cell(cell) for cell in x.__closure__ or ()] for x in found]
    return [x for x, values in zip(found, held, strict=True) if all(a is b for a, b in zip(values, outer, strict=True))]


def _is_object_of_user(item: Any) -> bool:
    kind = type(item)
    return not (kind in PLAIN or is_library_class(kind) or is_compared_by_contents(item))
