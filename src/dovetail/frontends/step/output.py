"""Where `print` and log records go while a step is recorded, or runs in eager mode."""

from __future__ import annotations

import builtins
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from dovetail.reach.frames import unnoted


@contextlib.contextmanager
def output_is_unnoted() -> Iterator[None]:
    """While active, in eager mode, what `print` and handlers of logs read is not noted as read by the step."""
    told, handle = builtins.print, logging.Logger.handle

    def write(*args: Any, **kwargs: Any) -> None:
        with unnoted():
            told(*args, **kwargs)

    def log(logger: logging.Logger, record: logging.LogRecord) -> bool:
        with unnoted():
            handle(logger, record)
        return True

    with replaced_builtin("print", write), replaced_handling(log):
        yield


@contextlib.contextmanager
def replaced_builtin(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While active, a function of Python's is another one."""
    before = getattr(builtins, name)
    setattr(builtins, name, function)
    try:
        yield
    finally:
        setattr(builtins, name, before)


@contextlib.contextmanager
def replaced_handling(log: Callable[[logging.Logger, logging.LogRecord], bool]) -> Iterator[None]:
    """While active, log records go elsewhere; dovetail's own and torch's do not."""
    before = logging.Logger.handle

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        is_own = logger.name.partition(".")[0] in ("dovetail", "torch")
        if is_own or not log(logger, record):
            before(logger, record)

    put: Any = logging.Logger
    put.handle = handle
    try:
        yield
    finally:
        put.handle = before
