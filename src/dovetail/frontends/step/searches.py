"""Steps that call LBFGS: the search runs in Python, as it is, and the closure that it calls is compiled.

How often a search calls its closure depends on the loss, so a step with one is no program. Its closure is: it is made
anew by each step, usually, and one program serves all that are of the same code.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch


class SearchCalled(Exception):
    """The step calls LBFGS."""


class Searches:
    """Runs a step in eager mode, with the closures of its searches compiled."""

    def __init__(self, optimizers: list[Any], compile_closure: Callable[[Any], Any]) -> None:
        """optimizers: those that the step reaches. compile_closure: makes a compiled step of a closure."""
        self._optimizers = [weakref.ref(x) for x in optimizers if isinstance(x, torch.optim.LBFGS)]
        self._compile = compile_closure
        self._compiled: dict[Any, Any] = {}

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
            return search(self._of(closure))

        optimizer.__dict__["step"] = step
        try:
            yield
        finally:
            optimizer.__dict__.pop("step", None)

    def _of(self, closure: Any) -> Any:
        code = getattr(closure, "__code__", None)
        if code is None:
            return closure
        if code not in self._compiled:
            self._compiled[code] = self._compile(closure)
        self._compiled[code].point_to(closure)
        return self._compiled[code]
