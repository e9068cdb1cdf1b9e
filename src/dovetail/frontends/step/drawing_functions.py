"""Functions of the user's, or of a library, that draw outside torch and compute with what they draw in Python.

Such a function (`_compute_mask_indices` of transformers' audio models, say) gets plain values and gives arrays or
numbers. It is called for real before each run of the program, as a whole; what it gives is made into inputs. Nothing
of it is recorded, and it must change nothing that the step reaches.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dovetail.capture.drawn_arrays import is_drawn
from dovetail.errors import DovetailError
from dovetail.frontends.step.containers import Fixed
from dovetail.frontends.step.drawn_values import Draw, Source
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.reach.stand_ins import StandIn
from dovetail.reach.values import PLAIN, is_a
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES

if TYPE_CHECKING:
    from dovetail.capture.step_recorder import StepRecorder

_OURS = __name__.partition(".")[0]
_RUNS = "_run"  # of `StepCapture`, which calls the step
_GENERATORS = ("Generator", "RandomState", "Random")


class NotBeforeRuns(Exception):
    """A function that draws cannot be called before a run."""


class _Notes(Protocol):
    """What notes draws: see `Draws`."""

    @property
    def recorder(self) -> StepRecorder: ...
    @property
    def sources(self) -> tuple[Source, ...]: ...
    @property
    def is_inside(self) -> bool: ...
    def argument(self, item: Any) -> Any: ...
    def add(self, meant: Draw, result: Any) -> Any: ...
    def inside(self) -> contextlib.AbstractContextManager[None]: ...
    @property
    def results(self) -> Sequence[Any]: ...


class DrawingFunctions:
    """Calls such functions while a step is recorded. useless: those that turned out not to be fit for it."""

    def __init__(self, reachable: ReachableState, functions: Sequence[FunctionType], notes: _Notes) -> None:
        """functions: that are called as a whole."""
        self.useless: list[FunctionType] = []
        self._reachable = reachable
        self._functions = functions
        self._notes: Any = weakref.proxy(notes)  # which has this
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """While active, such functions are called as a whole."""
        with contextlib.ExitStack() as stack:
            for function in self._functions:
                stub = self._calling(function)
                known = function.__globals__
                if known.get(function.__name__) is function:
                    stack.callback(known.__setitem__, function.__name__, function)
                    known[function.__name__] = stub
                for place in self._reachable.holding(function):
                    if not isinstance(place.container, Fixed):
                        with contextlib.suppress(TypeError, AttributeError):
                            place.write(stub)
                            stack.callback(place.write, function)
            yield

    def _calling(self, function: FunctionType) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or self._notes.is_inside:
                return function(*args, **kwargs)
            try:
                return self._called(function, args, kwargs)
            except (DovetailError, NotBeforeRuns):
                self.useless.append(function)
                raise

        return call

    def _called(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        notes: _Notes = self._notes
        meant = Draw(
            which=-1,
            function=function,
            args=tuple(map(notes.argument, args)),
            kwargs={name: notes.argument(item) for name, item in kwargs.items()},
            sources=notes.sources,
        )
        recorded, asked = len(notes.recorder.nodes), len(notes.recorder.questions)
        before = _plainly(self._reachable.changes())
        with notes.inside():
            result = meant.make([source.generator for source in notes.sources], notes.results)
        is_alone = (len(notes.recorder.nodes), len(notes.recorder.questions)) == (recorded, asked)
        if not is_alone or _plainly(self._reachable.changes()) != before or not _is_plain(result):
            raise NotBeforeRuns
        return notes.add(meant, result)


def _plainly(changes: Sequence[Any]) -> list[tuple[str, int]]:
    """What has changed, but for generators."""
    return [(x.label, id(x.new)) for x in changes if not (x.is_draw or type(x.new) is StandIn)]


def _is_plain(item: Any, *, is_argument: bool = False) -> bool:
    """Whether a value is plain, or an array, or holds such values."""
    if type(item) in (list, tuple):
        return all(_is_plain(part, is_argument=is_argument) for part in item)
    if type(item) is dict:
        return all(_is_plain(part, is_argument=is_argument) for part in item.values())
    if is_argument and type(item).__name__.strip("_") in _GENERATORS:
        return True
    if type(item) in SYMBOLIC_TYPES or is_drawn(item):
        return True
    return type(item) in PLAIN or is_a(item, (np.generic, np.ndarray, np.dtype, range))


def candidates(reachable: ReachableState) -> list[FunctionType]:
    """The functions that run now and get plain arguments, between the step and the code that draws, outermost first."""
    found: list[FunctionType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        home = str(frame.f_globals.get("__name__", ""))
        name = frame.f_code.co_name
        if home.partition(".")[0] == _OURS:
            if name == _RUNS:
                break
        elif not name.startswith("<") and not home.startswith("numpy"):
            info = inspect.getargvalues(frame)
            names = [*info.args, *filter(None, (info.varargs, info.keywords))]
            if not all(_is_plain(info.locals.get(x), is_argument=True) for x in names):
                break
            found += _held(frame, reachable)
        frame = frame.f_back
    return found[::-1]


def _held(frame: FrameType, reachable: ReachableState) -> list[FunctionType]:
    """The function that runs in a frame, where it can be replaced by another one where it is held."""
    function = frame.f_globals.get(frame.f_code.co_name)
    if isinstance(function, FunctionType) and function.__code__ is frame.f_code:
        return [function]
    return [x for x in reachable.functions if x.__code__ is frame.f_code and reachable.holding(x)][:1]
