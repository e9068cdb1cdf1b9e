"""What a mutation pattern is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BOTH = ("mutations", "mutations_and_views")
SYMBOLIC = (*BOTH, "symbolic")
AHEAD_OF_TIME = ("aot_v1", "aot_v2")

# Why there are more copies than are needed.
CONTIGUOUS = "what a copy of a view gives is contiguous: who computes with it may round differently on the view"


@dataclass(frozen=True)
class Pattern:
    """A function of tensors that writes, as a user would write it, and how many copies of a full buffer it needs.

    ways: how it is made functional, see `tests.passes.patterns.trace`. copies: full-size copies that no order and no
    choice of places avoids. why: the reason, where that is not 0. report: the public report it stands for. donate:
    inputs that may be used up. more: way -> copies beyond those, which the pass still makes, or which that way of
    tracing asks for. weakness: why. unproved: ways in which the report cannot prove that the copies are needed.
    """

    name: str
    program: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    ways: tuple[str, ...] = BOTH
    copies: int = 0
    why: str = ""
    report: str = ""
    donate: tuple[int, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)
    weakness: str = ""
    unproved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert bool(self.why) == (self.copies > 0), f"{self.name}: a copy has a reason"
        assert bool(self.weakness) == bool(self.more), f"{self.name}: more copies have a reason"

    def reached(self, way: str) -> int:
        """How many copies there are."""
        return self.copies + self.more.get(way, 0)
