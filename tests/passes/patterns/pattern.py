"""What a mutation pattern is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BOTH = ("mutations", "mutations_and_views")
SYMBOLIC = (*BOTH, "symbolic")
AHEAD_OF_TIME = ("aot_v1", "aot_v2")


@dataclass(frozen=True)
class Pattern:
    """A function of tensors that writes, as a user would write it, and how many copies of a full buffer it needs.

    ways: how it is made functional, see `tests.passes.patterns.trace`. copies: full-size copies that no order and no
    choice of places avoids. why: the reason, where that is not 0. report: the public report it stands for. donate: inputs
    that may be used up. missed: bytes that the pass copies without a proof that it has to. names: reasons, in `explain()`,
    by which copies are kept.
    """

    name: str
    program: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    ways: tuple[str, ...] = BOTH
    copies: int = 0
    why: str = ""
    report: str = ""
    donate: tuple[int, ...] = ()
    missed: int = 0

    def __post_init__(self) -> None:
        assert bool(self.why) == (self.copies > 0), f"{self.name}: a copy has a reason"
