"""Ranks of a process group agree, once in each call, that they are about to run the same collectives.

Each says by a hash which sequence its program has, or 0 where the call runs in eager mode. Two programs of different
sequences are an error on every rank, before the first of them runs. Eager mode and programs go together, because a
program runs the collectives of eager mode in eager mode's order.

A rank agrees when nothing can send it another way any more: after the last check of its program, or right before the
first collective, whichever comes first. In eager mode a dispatch mode sees the first collective come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from dovetail.errors import CollectiveFailed, CollectivesDiffer
from dovetail.ops.collectives import asked_before
from dovetail.torch_compat.collectives import (
    NAMESPACES,
    default_group,
    find_group,
    gathered_numbers,
    gathered_objects,
    group_of_operator,
)
from dovetail.torch_compat.dispatch import PlainMode

Sequences: TypeAlias = "Mapping[str, Sequence[str]]"

IN_EAGER_MODE = 0
_SHOWN = 3


class Agreement:
    """What one call of a step has agreed on so far. It lasts for the attempts that the call takes."""

    def __init__(self) -> None:
        self._done: set[str] = set()

    @contextmanager
    def of_program(self, sequences: Sequences) -> Iterator[None]:
        """While active, a program runs. sequences: for each group, a line for each collective."""
        with asked_before(lambda group: self.before(group, sequences)):
            yield

    @contextmanager
    def of_eager_mode(self) -> Iterator[None]:
        """While active, a step runs in eager mode."""
        if default_group() is None:
            yield
            return
        with _Seeing(self):
            yield

    def before(self, group: str, sequences: Sequences | None = None) -> None:
        """A collective of a group is about to run. sequences: of the program, None in eager mode.

        Raises: CollectivesDiffer, on every rank of the group; CollectiveFailed.
        """
        if group in self._done:
            return
        self._done.add(group)
        process_group = find_group(group)
        if process_group.size() == 1:
            return
        lines = None if sequences is None else sequences[group]
        try:
            hashes = gathered_numbers(IN_EAGER_MODE if lines is None else hash_of(lines), process_group)
        except RuntimeError as error:
            raise CollectiveFailed(operator="the agreement of ranks", group=group, error=str(error)) from error
        if len(set(hashes) - {IN_EAGER_MODE}) > 1:
            told = gathered_objects(lines, process_group)
            raise CollectivesDiffer(group=group, differences=_differences(told))


class _Seeing(PlainMode):
    """Sees the collectives that eager mode runs."""

    supports_higher_order_operators = True

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self._agreement = agreement

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in NAMESPACES:
            group = group_of_operator(func, args)
            if group is not None:
                with suppress(LookupError):  # a group that no program finds
                    self._agreement.before(group)
        return func(*args, **(kwargs or {}))


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
