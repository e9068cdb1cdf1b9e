"""The programs of one compiled function or step: which one is for a call, how many there may be, what has happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dovetail.capture.exclusive import replacing
from dovetail.errors.base import warn
from dovetail.frontends.patience import Patience
from dovetail.frontends.statistics import Counts, Stats, VariantStats
from dovetail.frontends.structure import Structure

logger = logging.getLogger("dovetail")


class Guard(Protocol):
    """For which calls a program is. Each has a method `why`, which says what keeps a call from it."""

    def inputs(self, leaves: Sequence[Any], structure: Structure) -> list[Any] | None:
        """What the program takes in a call; None when the call is not for it, which may be wrong."""

    @property
    def is_alive(self) -> bool:
        """Whether a call can be for it: nothing is gone that the guard relies on."""


G = TypeVar("G", bound=Guard)
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Variant(Generic[G, R]):
    """One program of a function, of a step, or of a frozen method.

    guard: for which calls it is. runner: runs it. reason: why it was captured. calls, misses: runs, and those that were
    given up before their first write, as counted by who keeps a cache. is_once: it has run once, and another one is for
    later calls.
    """

    guard: G
    runner: R
    reason: str = ""
    calls: int = 0
    misses: int = 0
    is_once: bool = False


V = TypeVar("V", bound=Variant[Any, Any])

_IDLE = 6  # refused calls


class VariantCache(Generic[V]):
    """See the module docstring.

    Attributes: name, limit: of programs. variants: the oldest first. recent: the last one that was used first. counts,
    patience: of the calls.
    """

    def __init__(self, name: str, limit: int) -> None:
        """Hold no program yet."""
        self.name = name
        self.limit = limit
        self.variants: list[V] = []
        self.recent: list[V] = []
        self.counts = Counts()
        self.patience = Patience()
        self._warned: set[str] = set()
        self._idle: dict[int, tuple[int, int]] = {}  # of each variant: calls, and how often a call was refused since
        self._most_idle = _IDLE
        self._has_refused = False  # since the last one made room
        self._short_lived = 0  # programs that are gone, since one was of use to a second call

    @property
    def is_full(self) -> bool:
        """Whether no more programs may be made."""
        return sum(not variant.is_once for variant in self.variants) >= self.limit

    def find(
        self, leaves: Sequence[Any], structure: Structure, tried: Collection[V] = ()
    ) -> tuple[V, list[Any]] | None:
        """The program for a call, and its inputs. tried: programs that it is not for."""
        for variant in self.recent:
            if variant not in tried:
                inputs = variant.guard.inputs(leaves, structure)
                if inputs is not None:
                    self.prefer(variant)
                    return variant, inputs
        return None

    def prefer(self, variant: V) -> None:
        """Ask a program first from now on."""
        if self.recent[0] is not variant:
            self.recent.remove(variant)
            self.recent.insert(0, variant)

    def drop(self, variant: V) -> None:
        """Forget a program."""
        self.variants.remove(variant)
        self.recent.remove(variant)

    def add_again(self, variant: V) -> None:
        """Keep a program that was forgotten."""
        self.variants.append(variant)
        self.recent.insert(0, variant)

    def drop_dead(self) -> None:
        """Forget the programs that no call can be for."""
        dead = [variant for variant in self.variants if not variant.guard.is_alive]
        if dead:
            self.variants = [variant for variant in self.variants if variant not in dead]
            self.recent = [variant for variant in self.recent if variant not in dead]
            self._short_lived += len(dead)

    def fitted(self, variant: V) -> None:
        """A program has run. Where it was captured for the call, that does not show yet that it is of use."""
        if variant.calls > 1:
            self.patience.found()
            self._short_lived = 0

    @property
    def has_idle(self) -> bool:
        """Whether another program may take the place of one that no call was for while many were refused.

        Where a program was for none of many in a row, calls are looked at more and more rarely: then one refused call
        is enough.
        """
        if self.variants and self.variants[-1].calls > 1:
            self._most_idle = _IDLE
        is_vain = self.patience.row >= _IDLE and self._has_refused
        return is_vain or any(refused >= self._most_idle for _, refused in self._idle.values())

    def _drop_idle(self) -> None:
        """Forget the program that is idle for longest. The next time it takes twice as many refused calls, unless the
        program that took its place was of use: where each call needs one of its own, few are captured in vain.
        """
        counted = [variant for variant in self.variants if not variant.is_once]
        idle = max(counted, key=lambda variant: (self._idle.get(id(variant), (0, 0))[1], -variant.calls))
        self._most_idle *= 2
        self._has_refused = False
        self._idle.pop(id(idle), None)
        self.drop(idle)

    def add(self, variant: V) -> None:
        """Keep a program that was captured for a call."""
        logger.info("%s: variant %d, because %s", self.name, len(self.variants), variant.reason)
        self.counts.captures += 1
        self.add_again(variant)

    def why(self, tell: Callable[[V], str]) -> str:
        """The reason for a new program. tell: compares a call with the one that was used last."""
        return tell(self.recent[0]) if self.recent else "it is the first"

    def captured(
        self, why: Callable[[], str], capture: Callable[[], tuple[V, list[Any]] | None]
    ) -> tuple[V, list[Any]] | None:
        """A new program, kept, and its inputs; None when no more may be made, which is told.

        None, too, while another thread watches or records. why: the reason for it. capture: makes it; None where the
        call is to run in eager mode.
        """
        self.drop_dead()
        if self.is_full and self.has_idle:
            self._drop_idle()
        if self.is_full:
            self.refuse(why)
            return None
        with replacing() as is_alone:
            if not is_alone:
                return None
            start = time.process_time()
            try:
                made = capture()
            finally:
                self.counts.seconds += time.process_time() - start
        if made is not None:
            made[0].reason = why()
            self.add(made[0])
            if self._short_lived >= self.limit:
                self._warn_of_short_lives(made[0].reason)
        return made

    def _warn_of_short_lives(self, reason: str) -> None:
        """Programs are captured in vain: let calls be looked at more and more rarely. reason: for the last one."""
        self.patience.missed()
        self.warn(
            f"{self.name} was compiled for {self._short_lived} calls, and no other call was for any of these programs; "
            f"more and more calls run in eager mode. The last reason: {reason}. See `.stats`."
        )

    def refuse(self, why: Callable[[], str]) -> None:
        """A call fits no program, and none may be made for it. why: what is to be said of it."""
        self.patience.missed()
        self._has_refused = True
        counted = [variant for variant in self.variants if not variant.is_once]
        known = {id(variant): self._idle.get(id(variant), (variant.calls, 0)) for variant in counted}
        self._idle = {id(x): (x.calls, known[id(x)][1] + 1 if x.calls == known[id(x)][0] else 0) for x in counted}
        self.warn_of_limit(why)

    def warn_of_limit(self, why: Callable[[], str]) -> None:
        """Say, once, that calls run in eager mode because no more programs may be made."""
        if "limit" not in self._warned:
            self._warned.add("limit")
            warn(
                f"{self.name} was compiled for {self.limit} kinds of calls; further kinds run in eager mode. The last "
                f"reason: {why()}. Raise max_variants, or see `.stats`."
            )

    def warn(self, text: str) -> None:
        """Say something, once."""
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    @property
    def stats(self) -> Stats:
        """What happened so far."""
        return self.counts.stats(VariantStats(v.reason, v.calls, v.misses, v.is_once) for v in self.variants)
