"""Where `print` and log records go while a step is recorded, or runs in eager mode."""

from __future__ import annotations

import builtins
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dovetail.frontends.step.trackers import trackers_replaced
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

    def track(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        with unnoted():
            function(*args, **kwargs)

    with replaced_builtin("print", write), replaced_handling(log), trackers_replaced(track):
        yield


class Written:
    """Stands in for `sys.stdout` or `sys.stderr`: what this thread writes is noted, anything else is the stream's."""

    def __init__(self, name: str, note: Callable[[Callable[..., Any], Any, Any], None]) -> None:
        self.name = name
        self.stream = getattr(sys, name)
        self._note = note
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Note a text."""
        if threading.get_ident() != self._thread:
            return int(self.stream.write(text))
        self._note(_write, (self.name, text), {})
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Note texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Note that what was written is to be seen."""
        self._note(_flush, (self.name,), {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


STREAMS = ("stdout", "stderr")


def _write(name: str, text: str) -> None:
    getattr(sys, name).write(text)


def print_to(function: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> None:
    """Print, to a stream that may be one that stood in while the step was recorded."""
    function(*args, file=getattr(sys, file.name) if isinstance(file, Written) else file, **kwargs)


def _flush(name: str) -> None:
    getattr(sys, name).flush()


@contextlib.contextmanager
def streams_replaced(note: Callable[[Callable[..., Any], Any, Any], None]) -> Iterator[None]:
    """While active, `note` gets what is written to `sys.stdout` and `sys.stderr`."""
    before = sys.stdout, sys.stderr
    put: Any = sys
    ours = tuple(getattr(sys, name) and Written(name, note) for name in STREAMS)
    put.stdout, put.stderr = ours
    try:
        yield
    finally:
        if sys.stdout is ours[0]:
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]


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
