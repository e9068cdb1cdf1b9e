"""Watching what the code of a call reads while it is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

from dovetail.errors import OutsideRead
from dovetail.ir.program import Origin
from dovetail.reach.frames import Frames
from dovetail.reach.guard import ReadGuard
from dovetail.reach.outside import RANDOM, Verdict
from dovetail.reach.reads import Reads
from dovetail.reach.spies import Spies
from dovetail.reach.values import random_state, set_random_state


class Watcher:
    """What is read while it is active, and what of the outside was asked for."""

    def __init__(self, known: AbstractSet[tuple[int, str]] = frozenset(), *, refuses_draws: bool = True) -> None:
        """known: places that others compare; see `Reads.without`. refuses_draws: random numbers outside torch, too."""
        self._known = known
        self._refuses_draws = refuses_draws
        self.refusals: list[OutsideRead] = []
        self.guard: ReadGuard | None = None

    @contextmanager
    def watched(self, roots: list[Any]) -> Iterator[None]:
        """While active, reads are noted; then `guard` tells whether they would give the same again.

        roots: what the call begins with: the function, and arguments that hold more than their own value.
        Raises: OutsideRead, by the code that runs and again at the end, for a call of C that cannot be repeated.
        """
        frames = Frames()
        was_enabled = gc.isenabled()
        gc.disable()
        gc.collect(1)  # what is young afterwards was made meanwhile
        try:
            with ExitStack() as stack:
                spies = Spies(stack, frames.is_counted)
                reads = spies.reads
                for root in roots:
                    reads.root(root)
                spies.install_builtins()

                def on_call(function: Any, verdict: Verdict, origin: Origin) -> None:
                    if verdict.ask is not None:
                        reads.ask(verdict.ask)
                        return
                    if verdict.why == RANDOM and not self._refuses_draws:
                        return
                    self.refusals.append(_refusal(function, verdict, origin))
                    raise self.refusals[-1]

                def on_compiler(frame: FrameType | None) -> None:
                    if frame is None:
                        spies.put_in()
                    else:  # it reads in its own ways, and would take spies for code of the user's
                        spies.take_out()
                        reads.everything(list(frame.f_locals.values()))

                frames.followed(stack, reads.code, on_call, on_compiler, reads.has_met)
                yield
            if self._refuses_draws:
                self._refuse_draws(reads)
            if self.refusals:
                raise self.refusals[0]
            _find_lost_functions(reads)
            made = set(map(id, gc.get_objects(generation=0)))
            self.guard = ReadGuard(reads, lambda item: id(item) in made, self._known)
        finally:
            if was_enabled:
                gc.enable()

    def _refuse_draws(self, reads: Reads) -> None:
        """Refuse draws from generators that no event shows, and put the generators back."""
        for source, key, state in reads.draws.values():
            if random_state(source)[0] != key:
                set_random_state(source, state)
                name = f"a method of {type(source).__module__}.{type(source).__qualname__}"
                self.refusals.append(OutsideRead(function=name, why=RANDOM))


def _find_lost_functions(reads: Reads) -> None:
    """Meet functions that code ran as, though nothing that was read led to them."""
    lost = reads.lost_codes()
    if lost:
        for function in gc.get_referrers(*lost):
            if isinstance(function, FunctionType) and isinstance(function.__code__, CodeType):
                reads.meet(function)


def _refusal(function: Any, verdict: Verdict, origin: Origin) -> OutsideRead:
    home = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    name = getattr(function, "__qualname__", type(function).__name__)
    return OutsideRead(function=f"{home}.{name}".removeprefix("builtins."), why=verdict.why, origin=origin)
