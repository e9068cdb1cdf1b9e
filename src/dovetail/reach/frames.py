"""What runs while a call is recorded: the user's code, and the functions of C that it calls.

Frames are told apart by the file of their code. A library of Python (`pathlib`, `logging`) works on behalf of whoever
calls it; what only serves Python itself (imports, warnings, tracebacks) does not count.
"""

from __future__ import annotations

import builtins
import sys
import threading
from _lsprof import Profiler
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum, auto
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file
from dovetail.reach.libraries import OURS, is_followed, is_library_class, is_library_module
from dovetail.reach.outside import RANDOM, Verdict, judge
from dovetail.reach.values import is_a
from dovetail.torch_compat.control_flow import GIVES_TO_DYNAMO
from dovetail.torch_compat.dispatch import HigherOrder
from dovetail.torch_compat.dynamo import is_running_plainly, not_traced
from dovetail.torch_compat.settings import print_options, setting_functions, tells_nothing, tells_setting, told_by

_TORCH = torch.__file__.rpartition("/")[0]
_NUMPY = np.__file__.rpartition("/")[0]
_MACHINERY = frozenset(
    (
        *("warnings", "inspect", "traceback", "linecache", "tokenize", "contextlib", "functools", "typing", "enum"),
        *("abc", "_py_abc", "dis", "_weakrefset", "copyreg", "re", "sre_compile", "sre_parse", "copy", "dataclasses"),
        *("codecs", "reprlib", "textwrap", "string", "keyword", "ast", "opcode", "importlib", "pkgutil"),
    )
)
# packages that torch itself works with
_OF_TORCH = frozenset(
    ("sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec", "tqdm", "typing_extensions", "triton")
)
_QUIET = ("logging", "threading")  # whose calls of C serve themselves: locks, the time of a message
_DYNAMO = f"{_TORCH}/_dynamo/eval_frame.py"
_OF_LOADERS = DataLoader.__iter__.__code__.co_filename
_DRAWING = ("__iter__", "__next__")
_DRAWS = Verdict(why="draws another batch in each call")
_CAN_PAUSE = sys.version_info < (3, 12)


class Role(Enum):
    """Whose code a frame runs."""

    USERS = auto()
    ON_BEHALF = auto()
    FORWARDING = auto()
    MACHINERY = auto()
    LIBRARY = auto()
    OURS = auto()
    COMPILER = auto()
    DRAWING = auto()
    SETTING = auto()


_OF_NO_EVENTS = (Role.LIBRARY, Role.OURS, Role.MACHINERY, Role.FORWARDING)
_OF_CALLERS = (Role.ON_BEHALF, Role.FORWARDING)
_FORWARDING = frozenset(  # to the target, or to what they stand in for
    (f"{OURS}/{file}", name)
    for file, names in (
        ("frontends/function.py", ("__getattr__", "__setattr__")),
        ("reach/spies.py", ("__getattribute__", "write", "call")),
        ("reach/stand_ins.py", ("__call__",)),
    )
    for name in names
)


class Frames:
    """Follows the frames of this thread."""

    def __init__(self) -> None:
        self._roles: dict[int, Role] = {}  # by identity: code has no hash of its own, and Python makes one each time
        self._codes: list[CodeType] = []
        self._verdicts: dict[Any, Verdict] = {}
        self._thread = threading.get_ident()
        self._seeded: dict[int, Any] = {}
        self.pauses = 0

    def is_counted(self, item: Any, frame: FrameType) -> bool:
        """Whether a read of an object is one of the call's, as far as the frame tells that reads."""
        if self.pauses or threading.get_ident() != self._thread:
            return False
        role = self._role_of(frame)
        if role is Role.USERS:
            return True
        if role is Role.OURS:
            return False
        return is_followed(item) or (item is not None and not is_library_class(type(item)))

    def serves_user(self, frame: FrameType) -> bool:
        """Whether a frame works for code of the user's, through whatever libraries, and not for this package."""
        if self.pauses or threading.get_ident() != self._thread:
            return False
        at: FrameType | None = frame
        while at is not None:
            role = self._role_of(at)
            if role in (Role.USERS, Role.OURS, Role.COMPILER):
                return role is Role.USERS
            at = at.f_back
        return False

    def followed(
        self,
        stack: ExitStack,
        on_code: Callable[[FrameType], None],
        on_call: Callable[[Any, Verdict, Origin], None],
        on_compiler: Callable[[FrameType | None], None],
        is_known: Callable[[Any], bool],
        on_answer: Callable[[Callable[[], Any], Any], None],
        on_return: Callable[[FrameType, Any], None] | None = None,
    ) -> None:
        """Report code of the user's that runs, and calls of functions of C that are not simply fine.

        on_compiler: gets the frame in which Dynamo begins to work, and None when it ends. is_known: whether an object
        was there before. on_answer: gets functions that told code of the user's a setting of torch, and what they told.
        on_return: gets the frames of the user's that end, and their results.

        A profiler that is active goes on to get its events.
        """
        before: Any = sys.getprofile()
        if isinstance(before, Profiler):  # of C: it cannot be called, and what is recorded is not its program
            before.disable()
            stack.callback(before.enable)
            before = None

        compiling: FrameType | None = None
        roles, settings = self._roles, setting_functions()

        @not_traced
        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal compiling
            if before is not None:
                before(frame, event, argument)
            if event == "c_return" or self.pauses:
                return
            if event == "c_call" and argument in settings and self.serves_user(frame):
                self._called(argument, frame, on_call, is_known)
                return
            if (roles.get(id(frame.f_code)) or self._own_role(frame)) in _OF_NO_EVENTS:
                return
            if event == "call":
                role = self._role_of(frame)
                if role is Role.USERS:
                    on_code(frame)
                elif role is Role.DRAWING:
                    on_call(frame.f_code, _DRAWS, self.origin(frame))
                elif role is Role.COMPILER and compiling is None and not _is_run_plainly(frame):
                    compiling = frame
                    on_compiler(frame)
            elif event == "return" and frame is compiling:
                compiling = None
                on_compiler(None)
            elif event == "return":
                self._returned(frame, argument, on_answer, on_return)
            elif event == "c_call" and self._role_of(frame) is Role.USERS and not _is_quiet(frame):
                self._called(argument, frame, on_call, is_known)

        _ACTIVE.append(self)
        stack.callback(_ACTIVE.remove, self)
        stack.callback(sys.setprofile, before)
        sys.setprofile(profile)

    def _called(
        self,
        function: Any,
        frame: FrameType,
        on_call: Callable[[Any, Verdict, Origin], None],
        is_known: Callable[[Any], bool],
    ) -> None:
        """A function of C is called by code of the user's."""
        verdict = self._judged(function)
        if verdict.why == RANDOM and self._draws_by_itself(function, frame, is_known):
            return
        if (verdict.why or verdict.ask is not None) and not _is_importing(frame):
            on_call(function, verdict, self.origin(frame))

    def _returned(
        self,
        frame: FrameType,
        result: Any,
        on_answer: Callable[[Callable[[], Any], Any], None],
        on_return: Callable[[FrameType, Any], None] | None,
    ) -> None:
        """Code of the user's ends, or code of torch's that tells a setting."""
        role = self._role_of(frame)
        if role is Role.USERS and on_return is not None:
            on_return(frame, result)
        if role is not Role.SETTING or is_a(result, torch.Tensor):
            return
        asked = told_by(frame)
        if asked is print_options:  # whoever writes a tensor while a call is recorded does it for that
            on_answer(asked, asked())
        elif asked is not None and self._role_of(frame.f_back or frame) is Role.USERS:
            has_told = result is not None or tells_nothing(asked)  # one that raises ends with None as well
            if has_told:
                on_answer(asked, result)

    def _judged(self, function: Any) -> Verdict:
        owner = function.__self__
        kind = owner if is_a(owner, type) else type(owner)
        key = (kind, function.__name__, function.__module__)
        found = self._verdicts.get(key)
        if found is None:
            found = judge(function)
            if not (found.why or found.ask is not None or kind.__module__ == "_io"):
                self._verdicts[key] = found
        return found

    def _draws_by_itself(self, function: Any, frame: FrameType, is_known: Callable[[Any], bool]) -> bool:
        """Whether a generator draws that the call makes, with a seed: it gives the same numbers in each call."""
        owner = function.__self__
        if function.__name__ == "seed" and frame.f_locals.get("a") is not None and not is_known(owner):
            self._seeded[id(owner)] = owner
        return id(owner) in self._seeded

    def _role_of(self, frame: FrameType) -> Role:
        """Whose code a frame runs; of one on behalf of others, theirs."""
        at: FrameType | None = frame
        while at is not None:
            role = self._own_role(at)
            if role not in _OF_CALLERS:
                return role
            at = at.f_back
        return Role.LIBRARY

    def _own_role(self, frame: FrameType) -> Role:
        role = self._roles.get(id(frame.f_code))
        if role is None:
            role = self._roles[id(frame.f_code)] = _role(frame)
            self._codes.append(frame.f_code)
        return role

    def origin(self, frame: FrameType) -> Origin:
        """The line of the user's that a frame works for."""
        at: FrameType | None = frame
        while at is not None and self._roles.get(id(at.f_code)) is not Role.USERS:
            at = at.f_back
        at = at or frame
        return Origin(at.f_code.co_filename, at.f_lineno, at.f_code.co_name, "")


_ACTIVE: list[Frames] = []


@contextmanager
def unnoted() -> Iterator[None]:
    """While active, what code reads is none of the call's: of functions that every call runs for real."""
    paused = list(_ACTIVE)
    for frames in paused:
        frames.pauses += 1
    try:
        yield
    finally:
        for frames in paused:
            frames.pauses -= 1


_FOLLOWING = next(x for x in Frames.followed.__code__.co_consts if isinstance(x, CodeType) and x.co_name == "profile")


class unfollowed:
    """While active, code that runs is not followed: a recorder's own work, some thousand calls for each operator.

    A profiler of somebody else's goes on. Before Python 3.12; from there on, stopping costs more than going on.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        before: Any = sys.getprofile() if _CAN_PAUSE else None
        self._before = before if type(before) is FunctionType and before.__code__ is _FOLLOWING else None
        if self._before is not None:
            sys.setprofile(None)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            sys.setprofile(self._before)


class own_work(unfollowed):
    """While active, code that runs is not followed, and functions of Python that report are what they were."""

    __slots__ = ("_reporting",)

    def __enter__(self) -> None:
        super().__enter__()
        self._reporting = {name: now for name, plain in _PLAIN.items() if (now := _BUILTINS[name]) is not plain}
        _BUILTINS.update(_PLAIN)

    def __exit__(self, *_: object) -> None:
        _BUILTINS.update(self._reporting)
        super().__exit__()


_BUILTINS = vars(builtins)
_PLAIN = {name: _BUILTINS[name] for name in ("getattr", "hasattr", "setattr", "delattr", "isinstance")}


def work_on(operator: Any) -> AbstractContextManager[None]:
    """What is active while an operator is recorded: sub-programs run the user's code, operators of others may."""
    if isinstance(operator, HigherOrder):
        return nullcontext()
    return own_work() if operator.namespace in ("aten", "prims") else unfollowed()


@contextmanager
def put_unfollowed(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    """While active, so are other contexts; what enters and leaves them is not followed."""
    with ExitStack() as stack:
        with unfollowed():
            for context in contexts:
                stack.enter_context(context)
        try:
            yield
        finally:
            with unfollowed():
                stack.close()


def _role(frame: FrameType) -> Role:
    file, home = frame.f_code.co_filename, frame.f_globals.get("__name__")
    is_made = file.startswith("<") and not file.startswith("<frozen")
    if file.startswith("<frozen importlib") or (frame.f_code.co_name == "<module>" and not is_made):
        return Role.MACHINERY
    if (file, frame.f_code.co_name) in GIVES_TO_DYNAMO:
        return Role.COMPILER
    if file == _OF_LOADERS and frame.f_code.co_name in _DRAWING:
        return Role.DRAWING
    if file.startswith(OURS) and is_library_file(file):
        return Role.FORWARDING if (file, frame.f_code.co_name) in _FORWARDING else Role.OURS
    if file.startswith(_TORCH) and tells_setting(frame.f_code):
        return Role.SETTING
    if file.startswith((_TORCH, _NUMPY, "<dovetail")) or str(home).partition(".")[0] in _OF_TORCH:
        return Role.LIBRARY
    if is_made:
        return Role.LIBRARY if is_library_module(home) else Role.USERS
    if not is_library_file(file):
        return Role.USERS
    return Role.MACHINERY if str(home).partition(".")[0] in _MACHINERY else Role.ON_BEHALF


def _is_run_plainly(frame: FrameType) -> bool:
    """Whether Dynamo is asked, and leaves the function as it was written."""
    return frame.f_code.co_filename == _DYNAMO and is_running_plainly()


def _is_quiet(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _QUIET


def _is_importing(frame: FrameType) -> bool:
    """Whether a module is being imported, which happens once in a process, recorded or not."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            return True
        at = at.f_back
    return False
