"""Progress of long work, on standard error, so that standard output stays what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


@contextmanager
def spinner(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Shows `what` and the text that the function is told last, while the work runs; nothing if quiet."""
    console = Console(stderr=True, quiet=quiet)
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(f"{what}: {text}"))
