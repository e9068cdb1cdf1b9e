"""Watching what the code of a call reads, while it is recorded or while it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

from dovetail.errors import DovetailError, IteratorRead, OutsideRead
from dovetail.ir.program import Origin
from dovetail.reach.changes import ReadChange, changes_of
from dovetail.reach.codes import asks_class
from dovetail.reach.frames import Frames
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guarded import guarded_by_reads
from dovetail.reach.known import without
from dovetail.reach.outside import RANDOM, Verdict
from dovetail.reach.reads import Reads
from dovetail.reach.remembered import forget_fakes
from dovetail.reach.spies import OnGradient, Spies
from dovetail.reach.stand_ins import StandIns
from dovetail.reach.unshown_changes import note_unshown
from dovetail.torch_compat.modules import global_hooks

OnFrame: TypeAlias = "Callable[[FrameType, str, Any], None]"
_NO_ANSWERS: Mapping[Callable[[], Any], Any] = {}
_NO_CODE: Mapping[CodeType, dict[str, Any]] = {}


class Watcher:
    """What is read while it is active, and what of the outside was asked for. reads: None before it began.

    on_frame: see `noted_reads`.
    """

    def __init__(
        self,
        *,
        refuses_outside: bool = True,
        refuses_draws: bool = True,
        line_of: Callable[[Any], Origin | None] = lambda _: None,
        on_gradient: OnGradient | None = None,
        stand_ins: StandIns | None = None,
    ) -> None:
        """refuses_outside: what asks for the world outside Python. refuses_draws: random numbers outside torch.

        line_of: which line names an object, where that is known. on_gradient: without it, no `.grad` is watched.
        stand_ins: are put in for code that runs.
        """
        self._stand_ins = stand_ins
        self.on_frame: OnFrame | None = None
        self._refuses_outside = refuses_outside
        self._refuses_draws = refuses_draws
        self._line_of = line_of
        self._on_gradient = on_gradient
        self._made: frozenset[int] = frozenset()
        self.refusals: list[DovetailError] = []
        self.reads: Reads | None = None

    @contextmanager
    def watched(
        self,
        roots: list[Any],
        answers: Mapping[Callable[[], Any], Any] = _NO_ANSWERS,
        codes: Mapping[CodeType, dict[str, Any]] = _NO_CODE,
    ) -> Iterator[Reads]:
        """While active, reads are noted.

        roots: what the call begins with: the function, and arguments that hold more than their own value. answers: of
        functions that are asked before every call as well. codes: what ran before, which left hooks behind, perhaps.
        Raises: OutsideRead, IteratorRead, by the code that runs and again at the end, for what cannot be repeated.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        gc.collect(1)  # what is young afterwards was made meanwhile
        try:
            noted = noted_reads(
                roots, self._on_call, self._on_moving, self._on_gradient, self._stand_ins, self.on_frame
            )
            with noted as reads:
                self.reads = reads
                for code, known in codes.items():
                    reads.code(code, known)
                for function, answer in answers.items():
                    reads.answered(function, answer)
                yield reads
            if self._refuses_draws:
                self._refuse_draws(reads)
            if self.refusals:
                raise self.refusals[0]
            _find_lost_functions(reads)
        finally:
            if self.reads is not None:
                forget_fakes(self.reads.met.values())
            self._made = frozenset(map(id, gc.get_objects(generation=0)))
            if was_enabled:
                gc.enable()

    def guard(
        self,
        known: AbstractSet[tuple[int, str]] = frozenset(),
        others: Collection[Any] = (),
        lifted: AbstractSet[tuple[int, str]] = frozenset(),
    ) -> PythonGuard:
        """Tells whether what was read is as it was before the call.

        known, others: slots, and objects, that others look after. lifted: slots of numbers that are inputs of programs.
        """
        assert self.reads is not None, "the call was watched"
        left_out = self._made.union(map(id, others))
        return PythonGuard(guarded_by_reads(self.reads, lambda item: id(item) in left_out, known, lifted))

    def changes(
        self,
        known: AbstractSet[tuple[int, str]] = frozenset(),
        is_known: Callable[[Any], bool] = lambda _: False,
    ) -> list[ReadChange]:
        """What the call has changed among what it read. Ask at once, see `guard`.

        known, is_known: slots, and objects, that others look after.
        """
        if self.reads is None:
            return []
        return list(changes_of(without(self.reads, known), self.was_made, is_known))

    def was_made(self, item: Any) -> bool:
        """Whether the call has made an object. Ask at once, see `guard`."""
        return id(item) in self._made

    def was_asked(self, tensor: Any) -> bool:
        """Whether code has asked a tensor without numbers for an attribute by name."""
        return self.reads is not None and id(tensor) in self.reads.asked_fakes

    def _on_call(self, function: Any, verdict: Verdict, origin: Origin) -> None:
        if verdict.ask is not None and self.reads is not None:
            self.reads.ask(verdict.ask)
        elif self._refuses_draws if verdict.why == RANDOM else self._refuses_outside:
            self.refusals.append(_refusal(function, verdict, origin))
            raise self.refusals[-1]

    def _on_moving(self, item: Any, origin: Origin) -> None:
        kind = type(item)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").removeprefix("_io.")
        article = "an" if name[0] in "aeiou" else "a"
        self.refusals.append(IteratorRead(kind=f"{article} {name}", origin=self._line_of(item) or origin))
        raise self.refusals[-1]

    def _refuse_draws(self, reads: Reads) -> None:
        """Refuse draws from generators that no event shows, and put the generators back."""
        for source in reads.unshown.put_sources_back():
            name = f"a method of {type(source).__module__}.{type(source).__qualname__}"
            self.refusals.append(OutsideRead(function=name, why=RANDOM))


@contextmanager
def noted_reads(
    roots: list[Any],
    on_call: Callable[[Any, Verdict, Origin], None] = lambda *_: None,
    on_moving: Callable[[Any, Origin], None] = lambda *_: None,
    on_gradient: OnGradient | None = None,
    stand_ins: StandIns | None = None,
    on_frame: OnFrame | None = None,
) -> Iterator[Reads]:
    """While active, what code of the user's reads is noted.

    on_call: gets calls of C that read the outside. on_moving: gets iterators and files that code may read on.
    on_gradient: without it, no `.grad` is watched. stand_ins: are put in for code that runs.
    on_frame: gets frames of the user's as they begin and end, which of both, and their results.
    """
    _make_locks()
    frames = Frames()
    with ExitStack() as stack:
        if stand_ins is not None:
            stack.callback(stand_ins.end)
        spies = Spies(stack, frames.is_counted, lambda item: on_moving(item, frames.origin(sys._getframe(1))))
        reads = spies.reads
        stack.callback(note_unshown, reads)
        for root in roots:
            reads.root(root)
        for hook in global_hooks():
            reads.meet(hook)
        spies.install_builtins()
        if on_gradient is not None:
            spies.install_gradients(on_gradient, frames.serves_user)

        def on_compiler(frame: FrameType | None) -> None:
            if frame is None:
                spies.put_in()
            else:  # it reads in its own ways, and would take spies for code of the user's
                spies.take_out()
                reads.everything(list(frame.f_locals.values()))

        def on_code(frame: FrameType) -> None:
            reads.runs(frame)
            if frame.f_back is not None and asks_class(frame.f_back.f_code):  # Python's, for the user's
                reads.codes.setdefault(frame.f_back.f_code, frame.f_back.f_globals)
            if stand_ins is not None:
                stand_ins.runs(frame)
            if on_frame is not None:
                on_frame(frame, "call", None)

        on_return = None if on_frame is None else lambda frame, result: on_frame(frame, "return", result)
        frames.followed(stack, on_code, on_call, on_compiler, reads.has_met, reads.answered, on_return)
        yield reads


def _make_locks() -> None:
    """Let libraries make the locks that they make once, with random names: it is no read of the call's.

    `torch.fx.Interpreter` shows a progress bar of tqdm, which would be left locked where making its lock is refused.
    """
    bars: Any = sys.modules.get("tqdm.std")
    if bars is not None:
        bars.tqdm.get_lock()


def _find_lost_functions(reads: Reads) -> None:
    """Meet functions that code ran as, though nothing that was read led to them."""
    lost = reads.lost_codes()
    if lost:
        for function in gc.get_referrers(*lost):
            if isinstance(function, FunctionType):
                reads.meet(function)


def _refusal(function: Any, verdict: Verdict, origin: Origin) -> OutsideRead:
    home = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    name = getattr(function, "__qualname__", type(function).__name__)
    return OutsideRead(function=f"{home}.{name}".removeprefix("builtins."), why=verdict.why, origin=origin)
