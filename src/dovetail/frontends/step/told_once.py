"""Calls outside that are made once, whatever becomes of the recording in which they were noted.

A library that remembers what it has said (`warning_once` of transformers, which `lru_cache` wraps) says it to the first
recording alone: neither later ones nor runs in eager mode come to it again.
"""

from __future__ import annotations

from dovetail.frontends.step.kept import Handed
from dovetail.frontends.step.noted_calls import HostCall
from dovetail.frontends.step.runner import StepRunner


class ToldOnce:
    """The calls that recordings have noted since the last call of a step was made."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, HostCall]] = []

    def note(self, call: HostCall, after: int) -> None:
        """A recording has noted a call that no other one will. after: how many that all of them note."""
        self._calls.append((after, call))

    def give_to(self, runner: StepRunner) -> None:
        """Let the next run of a program make them, but for those that it makes itself."""
        planned = runner.host_calls if runner.next_calls is None else runner.next_calls
        others = [item for item in self._calls if not any(item[1] is one for one in planned)]
        self._calls.clear()
        calls, seen = list[HostCall](), 0
        for call in planned:
            calls += [other for after, other in others if after == seen]
            others = [(after, other) for after, other in others if after != seen]
            calls.append(call)
            seen += not call.is_once
        runner.next_calls = (*calls, *(other for _, other in others))

    def make(self) -> None:
        """Make them now: the call runs in eager mode."""
        calls, self._calls = self._calls, []
        for _, call in calls:
            call.make(Handed())
