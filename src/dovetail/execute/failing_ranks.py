"""What ranks tell each other when one of them raises and lives on: no collective, which would have to be answered.

A rank whose call raises notes so in the store of its process group, under the number of the agreement that others may
be waiting at (`before`), or have made in this call (`within`):

    (none)  ->  raised: TEXT  ->  gone on       by the rank itself, when it comes to an agreement, or message, after all
                              ->  given up      by a rank that waits for it

Who waits looks there now and then. Only one of the two steps can be made, so all ranks see the same: either the rank is
waited for, as in eager mode, or the group is given up, and every call of every rank raises `RankFailed` from then on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

from dovetail.errors import RankFailed
from dovetail.torch_compat.collectives import (
    add_note_of_group,
    done_within,
    groups_of_process,
    name_of_group,
    notes_of_group,
    rank_in,
)

LOOKS_EACH = 0.25
_GRACE = 5.0  # for a rank that raised, went on, and comes to the same agreement with its next call
_GONE_ON, _GIVEN_UP = "gone on", "given up"
_LENGTH = 400


class GroupLog:
    """One process group, as this rank knows it. agreements: how many it has made. given_up: why it is of no use."""

    def __init__(self, group: Any) -> None:
        self.name, self.rank, self.size = name_of_group(group), rank_in(group), group.size()
        self.agreements = 0
        self.given_up: tuple[int, str] | None = None
        self.is_watched = (notes := notes_of_group(group)) is not None
        self._notes = notes
        self._told: dict[str, str] = {}

    def tell(self, error: BaseException, *, is_within: bool, is_over: bool) -> None:
        """This rank raises. is_within: after it has agreed. is_over: the group does not work any more."""
        text = f"raised {type(error).__name__}: {error}"[:_LENGTH]
        key = f"{self.agreements - is_within}.{_place(is_within)}.{self.rank}"
        if self._notes is not None:
            with contextlib.suppress(RuntimeError):  # nobody listens any more
                now = add_note_of_group(self._notes, key, "", text)
                if now == _GONE_ON:
                    now = add_note_of_group(self._notes, key, _GONE_ON, text)
                self._told[key] = now
        if is_over:
            self.given_up = self.rank, text

    def go_on(self) -> None:
        """This rank comes to an agreement. Raises: RankFailed where that is too late."""
        told, self._told = self._told, {}
        if any(".within." in key for key in told):
            time.sleep(2 * LOOKS_EACH)  # who waits in the call that was left is to see it
        for key, text in told.items():
            if self.given_up is None and add_note_of_group(self._notes, key, text, _GONE_ON) != _GONE_ON:
                self.given_up = self.rank, f"{text} in an earlier call, and the others have given it up"
        if self.given_up is not None:
            self._fail(*self.given_up)

    def wait(self, work: Any, *, is_within: bool) -> None:
        """Wait for work of a group. is_within: it comes after the agreement. Raises: RankFailed; RuntimeError."""
        seen: dict[str, float] = {}
        if self._notes is None:
            work.wait()
            return
        while not done_within(work, LOOKS_EACH):
            if self.look(seen, is_within):
                self.go_on()

    def look(self, seen: dict[str, float], is_within: bool = False, other: int | None = None) -> bool:
        """Whether the group is given up: by others, or by this rank, now. other: the one rank that is waited for."""
        found = self._failed(seen, is_within, other)
        if found is not None:
            self.given_up = found
        return self.given_up is not None

    def _failed(self, seen: dict[str, float], is_within: bool, other: int | None) -> tuple[int, str] | None:
        assert self._notes is not None, "there is somewhere to look"
        last = self.agreements - 1
        places = [f"{last}.within"] if is_within else [f"{self.agreements}.before", f"{last}.within"]
        for rank in range(self.size):
            for place in places:
                key = f"{place}.{rank}"
                if rank == self.rank or not self._notes.check([key]):
                    continue
                text = self._notes.get(key).decode()
                if text == _GONE_ON:
                    seen.pop(key, None)
                    continue
                if text.startswith(_GIVEN_UP):
                    return rank, text.removeprefix(_GIVEN_UP).strip()
                if other is not None and rank != other:
                    continue
                first = seen.setdefault(key, time.monotonic())
                is_late = is_within or time.monotonic() - first > _GRACE
                if is_late and add_note_of_group(self._notes, key, text, f"{_GIVEN_UP} {text}") != _GONE_ON:
                    return rank, text
        return None

    def _fail(self, rank: int, text: str) -> None:
        raise RankFailed(rank=rank, group=self.name, error=text)


def _place(is_within: bool) -> str:
    return "within" if is_within else "before"


_LOGS: WeakKeyDictionary[Any, GroupLog] = WeakKeyDictionary()


def log_of(group: Any) -> GroupLog:
    """What this rank knows of a process group."""
    if group not in _LOGS:
        _LOGS[group] = GroupLog(group)
    return _LOGS[group]


def tell_of(error: BaseException, agreed: Collection[str], ended: Collection[str], *, is_over: bool) -> None:
    """A call of this rank raises: let the ranks of all its groups know. agreed: groups that have, in this call. ended:
    groups in which nothing was left to do. is_over: a group does not work any more.
    """
    for group in groups_of_process():
        if group.size() > 1:
            name = name_of_group(group)
            if name not in ended:
                log_of(group).tell(error, is_within=name in agreed, is_over=is_over and name in agreed)
