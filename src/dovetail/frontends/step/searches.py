"""Steps that call LBFGS: the search runs in Python, as it is, and the closure that it calls is compiled.

How often a search calls its closure depends on the loss, so a step with one is no program. Its closure is: it is made
anew by each step, usually, and one program serves all that are of the same code. It is bound to a closure that stays,
whose variables hold, during a search, what those of the new one hold.
"""

from __future__ import annotations

import contextlib
import dis
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

_GIVING = frozenset(("STORE_DEREF", "DELETE_DEREF"))


class SearchCalled(Exception):
    """The step calls LBFGS."""


class Searches:
    """Runs a step in eager mode, with the closures of its searches compiled."""

    def __init__(self, optimizers: list[Any], compile_closure: Callable[[Any], Any]) -> None:
        """optimizers: those that the step reaches. compile_closure: makes a compiled step of a closure."""
        self._optimizers = [weakref.ref(x) for x in optimizers if isinstance(x, torch.optim.LBFGS)]
        self._compile = compile_closure
        self._compiled: dict[Any, Any] = {}
        self._staying: dict[CodeType, FunctionType] = {}
        self._busy: list[CodeType] = []  # of searches that go on, one inside the other or in several threads

    @property
    def closures(self) -> list[Any]:
        """The compiled closures."""
        return list(self._compiled.values())

    def call(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the step. Raises: what it raises."""
        with contextlib.ExitStack() as stack:
            for optimizer in (reference() for reference in self._optimizers):
                if optimizer is not None and "step" not in optimizer.__dict__:
                    stack.enter_context(self._replaced(optimizer))
            return step(*args, **kwargs)

    @contextlib.contextmanager
    def _replaced(self, optimizer: Any) -> Iterator[None]:
        search = optimizer.step

        def step(closure: Any) -> Any:
            with self._of(closure) as compiled:
                return search(compiled)

        optimizer.__dict__["step"] = step
        try:
            yield
        finally:
            optimizer.__dict__.pop("step", None)

    @contextlib.contextmanager
    def _of(self, closure: Any) -> Iterator[Any]:
        """The compiled closure, while a search goes on."""
        code = getattr(closure, "__code__", None)
        if code is None:
            yield closure
            return
        called = closure
        if code not in self._busy and _may_stay(closure):
            if code not in self._staying:
                self._staying[code] = _copy_of(closure)
            called = self._staying[code] if _is_alike(self._staying[code], closure) else closure
        if code not in self._compiled:
            self._compiled[code] = self._compile(called)
        self._compiled[code].point_to(called)
        self._busy.append(code)
        try:
            with _variables_of(closure, called):
                yield self._compiled[code]
        finally:
            self._busy.remove(code)


def _copy_of(closure: FunctionType) -> FunctionType:
    """Another closure of the same code, with variables of its own."""
    cells = tuple(CellType() for _ in closure.__closure__ or ())
    made = FunctionType(closure.__code__, closure.__globals__, closure.__name__, closure.__defaults__, cells)
    made.__kwdefaults__ = closure.__kwdefaults__
    return made


def _may_stay(closure: Any) -> bool:
    """Whether a closure does what another one does whose variables hold the same: it gives none of them another value,
    and has no attributes.
    """
    return type(closure) is FunctionType and not vars(closure) and not _gives_values(closure.__code__)


@lru_cache(256)
def _gives_values(code: CodeType) -> bool:
    found = any(x.opname in _GIVING and x.argval in code.co_freevars for x in dis.get_instructions(code))
    return found or any(_gives_values(inner) for inner in code.co_consts if isinstance(inner, CodeType))


def _is_alike(staying: FunctionType, closure: FunctionType) -> bool:
    parts = ("__globals__", "__defaults__", "__kwdefaults__")
    return all(getattr(staying, part) is getattr(closure, part) for part in parts)


@contextlib.contextmanager
def _variables_of(closure: Any, called: Any) -> Iterator[None]:
    """While active, the variables of one closure hold what those of another one hold."""
    pairs = [] if called is closure else list(zip(called.__closure__ or (), closure.__closure__ or (), strict=True))
    for cell, held in pairs:
        with contextlib.suppress(ValueError):  # a variable without a value
            cell.cell_contents = held.cell_contents
    try:
        yield
    finally:
        for cell, _ in pairs:
            with contextlib.suppress(ValueError):
                del cell.cell_contents
