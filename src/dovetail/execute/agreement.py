"""Ranks of a process group agree, once in each call, that they are about to run the same collectives.

Each says by a hash which sequence its program has, or 0 where the call runs in eager mode. Two programs of different
sequences are an error on every rank, before the first of them runs. Eager mode and programs go together, because a
program runs the collectives of eager mode in eager mode's order.

Some programs only do what eager mode does if all ranks do the same: if all miss the gradients of the same parameters,
or leave out the same gathers. Ranks say which with the hash; where another rank says something else, or runs in eager
mode, so does this one.

A rank agrees when nothing can send it another way any more: after the last check of its program, or right before the
first collective, whichever comes first. In eager mode a dispatch mode sees the first collective come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeAlias

from dovetail.errors import CollectiveFailed, CollectivesDiffer, RankFailed
from dovetail.execute.failing_ranks import log_of, tell_of
from dovetail.execute.message_watch import go_on_in, wait_for_message
from dovetail.ops.collectives import asked_before
from dovetail.ops.messages import messages_watched
from dovetail.torch_compat.collectives import (
    NAMESPACES,
    default_group,
    find_group,
    gathered_objects,
    group_of_message,
    group_of_operator,
    start_to_gather,
)
from dovetail.torch_compat.data_parallel import joins_noticed
from dovetail.torch_compat.dispatch import PlainMode

Sequences: TypeAlias = "Mapping[str, Sequence[str]]"

IN_EAGER_MODE = 0
_NO_USE: Mapping[str, str] = {}
_SHOWN = 3
_NOTHING_ASKED = nullcontext()


class OthersUseMore(Exception):
    """Another rank has gradients that this one lacks, or may have: the call is for eager mode."""

    def __str__(self) -> str:
        return "ranks have, or may have, gradients of different parameters"


class OthersGather(OthersUseMore):
    """Another rank gathers again what this one's program keeps: the call is for eager mode, which gathers again."""

    def __str__(self) -> str:
        return "another rank gathers weights again that this one keeps"


class Agreement:
    """What one call of a step has agreed on so far. It lasts for the attempts that the call takes."""

    def __init__(self) -> None:
        self._done: set[str] = set()
        self._agreed: set[str] = set()
        self._sequences: Sequences = {}
        self._messages: Collection[str] = ()
        self._ran: dict[str, int] = {}
        self._is_off = False

    def of_program(
        self,
        sequences: Sequences,
        used: Mapping[str, str] = _NO_USE,
        eager: Sequences | None = None,
        messages: Collection[str] = (),
    ) -> AbstractContextManager[None, bool | None]:
        """While active, a program runs. sequences: for each group, a line for each collective. used: see `used_of`.
        eager: eager mode's sequences, where they are others. messages: groups in which it sends or receives some.
        """
        self._sequences, self._messages = sequences, messages
        self._ran.clear()
        asked = self._asked(sequences, used, eager) if sequences else _NOTHING_ASKED
        return _both(messages_watched(go_on_in, wait_for_message), asked) if messages else asked

    @contextmanager
    def _asked(self, sequences: Sequences, used: Mapping[str, str], eager: Sequences | None) -> Iterator[None]:
        def wait(group: str, work: Any) -> None:
            log_of(find_group(group)).wait(work, is_within=True)
            self._ran[group] = self._ran.get(group, 0) + 1

        with asked_before(lambda group: self.before(group, sequences, used, eager), wait):
            yield

    @contextmanager
    def of_eager_mode(self) -> Iterator[None]:
        """While active, a step runs in eager mode."""
        if default_group() is None:
            yield
            return
        self._sequences, self._messages = {}, ()
        with _Seeing(self), joins_noticed(self._end):
            yield

    def _end(self) -> None:
        """Some ranks may have no batch, and would not answer."""
        self._is_off = True

    def before(
        self,
        group: str,
        sequences: Sequences | None = None,
        used: Mapping[str, str] = _NO_USE,
        eager: Sequences | None = None,
    ) -> None:
        """A collective of a group is about to run. sequences: of the program, None in eager mode. used: see `used_of`.
        eager: eager mode's sequences, where they are others.

        Raises: CollectivesDiffer, on every rank of the group; CollectiveFailed; RankFailed; OthersUseMore.
        """
        if self._is_off or group in self._done:
            return
        self._done.add(group)
        process_group = find_group(group)
        if process_group.size() == 1:
            return
        own, uses = None if sequences is None else sequences[group], used.get(group, "")
        lines = own if own is None or eager is None else eager[group]
        fewer = [] if own is None or own == lines else own
        said = [IN_EAGER_MODE if lines is None else hash_of(lines), hash_of([uses, *fewer])]
        answers = self._gathered(said, process_group)
        if len({number for number, _ in answers} - {IN_EAGER_MODE}) > 1:
            told = gathered_objects(lines, process_group)
            raise CollectivesDiffer(group=group, differences=_differences(told))
        if all(answer == said for answer in answers):
            return
        if "0" in uses:
            raise OthersUseMore
        if fewer:
            raise OthersGather

    def _gathered(self, said: list[int], group: Any) -> list[list[int]]:
        log = log_of(group)
        log.go_on()
        try:
            work, read = start_to_gather(said, group)
            log.wait(work, is_within=False)
        except RuntimeError as error:
            raise CollectiveFailed(operator="the agreement of ranks", group=log.name, error=str(error)) from error
        log.agreements += 1
        self._agreed.add(log.name)
        return read()

    def raised(self, error: BaseException) -> None:
        """The call raises: let other ranks know, who may wait."""
        if default_group() is None or isinstance(error, CollectivesDiffer | RankFailed):
            return
        ended = {group for group, lines in self._sequences.items() if self._ran.get(group, 0) == len(lines)}
        tell_of(error, self._agreed, ended.difference(self._messages), is_over=isinstance(error, CollectiveFailed))


class _Seeing(PlainMode):
    """Sees the collectives that eager mode runs."""

    supports_higher_order_operators = True

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self._agreement = agreement

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in NAMESPACES:
            if (between := group_of_message(func, args)) is not None:
                log_of(between).go_on()
            group = group_of_operator(func, args)
            if group is not None:
                with suppress(LookupError):  # a group that no program finds
                    self._agreement.before(group)
        return func(*args, **(kwargs or {}))


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


def hash_of(lines: Sequence[str]) -> int:
    """A number for a sequence of collectives, not that of eager mode."""
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    return int.from_bytes(digest[:7], "little") + 1


def _differences(told: Sequence[Sequence[str] | None]) -> str:
    """Where sequences part for the first time, rank by rank."""
    known = [(rank, lines) for rank, lines in enumerate(told) if lines is not None]
    longest = max(len(lines) for _, lines in known)
    first = next(i for i in range(longest) if len({tuple(lines[i : i + 1]) for _, lines in known}) > 1)
    parts = [f"rank {rank} {lines[first] if first < len(lines) else 'ends'}" for rank, lines in known[:_SHOWN]]
    return f"at number {first + 1}, " + ", ".join(parts) + (", ..." if len(known) > _SHOWN else "")
