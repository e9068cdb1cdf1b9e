"""The error of code that has run a part of several nodes, of which it is not known which."""

from __future__ import annotations


class PartlyRun(RuntimeError):
    """at: the number of the last node that may have run."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at
