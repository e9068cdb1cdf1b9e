"""When contents begin to leave and to come back, so that nobody waits for them: as early as that costs no memory.

A walk says when contents must have left, and when they must be there. They begin to leave once they are made. They
begin to come back as late as still gives the file time for them and for those that are needed after them, and no
earlier than there is room under the limit; those that are needed first choose first.

Cost: O(runs), and for each fetch the runs that it goes back over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.schedule import Act, Move, Run, Way, live_during

_MARGIN = 2  # how many times as long as it should a fetch may take


def with_beginnings(problem: WholeProblem, runs: Sequence[Act], limit_bytes: int) -> list[Act]:
    """The runs of a walk, where contents that leave and come back begin to do so."""
    return _with_fetches(problem, _with_spills(runs), limit_bytes)


def _with_spills(runs: Sequence[Act]) -> list[Act]:
    """Contents begin to leave right after they were made."""
    made: dict[int, int] = {}
    leaving: dict[int, list[int]] = {}
    for at, run in enumerate(runs):
        if isinstance(run, Run):
            made.update(dict.fromkeys(run.makes, at))
        elif run.way is Way.SPILLED:
            leaving.setdefault(made[run.storage], []).append(run.storage)
    found: list[Act] = []
    for at, run in enumerate(runs):
        found.append(run)
        found += [Move(Way.SPILL, storage) for storage in leaving.get(at, ())]
    return found


def _with_fetches(problem: WholeProblem, runs: Sequence[Act], limit_bytes: int) -> list[Act]:
    """Contents begin to come back before they are needed. runs: where they begin when they are needed."""
    times = [0, *accumulate(problem.costs[run.node] if isinstance(run, Run) else 0 for run in runs)]
    fetches = [at for at, run in enumerate(runs) if isinstance(run, Move) and run.way is Way.FETCH]
    latest: dict[int, int] = {}
    free = times[-1]
    for at in reversed(fetches):
        free = min(free, times[at]) - _MARGIN * problem.fetches[runs[at].storage]  # type: ignore[union-attr]
        latest[at] = free
    gone = _gone_since(problem, runs)
    live = live_during(problem, runs)
    begin: dict[int, list[Act]] = {}
    for at in fetches:
        fetch = runs[at]
        assert isinstance(fetch, Move), "just chosen"
        size, start = problem.sizes[fetch.storage], at
        while start - 1 > gone[at] and times[start] > latest[at] and live[start - 1] + size <= limit_bytes:
            start -= 1
            live[start] += size
        begin.setdefault(start, []).append(fetch)
    found: list[Act] = []
    for at, run in enumerate(runs):
        found += begin.get(at, ())
        if at not in latest:
            found.append(run)
    return found


def _gone_since(problem: WholeProblem, runs: Sequence[Act]) -> dict[int, int]:
    """For each fetch, the last run before it that uses what was there before."""
    used: dict[int, int] = {}
    found: dict[int, int] = {}
    for at, run in enumerate(runs):
        if isinstance(run, Run):
            used.update(dict.fromkeys((*problem.reads[run.node], *problem.makes[run.node]), at))
        else:
            if run.way is Way.FETCH:
                found[at] = used[run.storage]
            used[run.storage] = at
    return found
