"""The arena of a program: how small it can be, planned and proved; what reports say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.analysis.liveness import Need
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import build_problem
from dovetail.memory.solve import solve

_REPORTED = 1_000_000
"""Decisions of the search that a report is worth, times buffers: each takes longer the more there are."""


@dataclass(frozen=True, slots=True)
class ArenaReport:
    """One arena for all that a program makes, and for what its operators need besides.

    size_bytes: of the arena that was planned. bound_bytes: that no arena can be below, as they are needed at one time.
    buffers: how many lie in it. by: which solver placed them.
    """

    size_bytes: int
    bound_bytes: int
    buffers: int
    by: str

    @property
    def ratio(self) -> float:
        """Of the arena to the bound."""
        return self.size_bytes / self.bound_bytes if self.bound_bytes else 1.0

    def __str__(self) -> str:
        share = f"{self.ratio:.3f}x of what is needed at one time"
        return f"{self.size_bytes:,} bytes for {self.buffers} buffers, {share} ({self.by})"


def plan_arena(program: Program, hints: Mapping[str, Number], need_of: Callable[[Node], Need]) -> ArenaReport:
    """Place all storages of a program, and prove the placement. See `problem.build_problem` and `solve.solve`."""
    problem = build_problem(program, hints, need_of)
    placement = solve(problem, decisions=_REPORTED // max(1, len(problem.buffers)))
    verify_placement(problem, placement, program.name)
    return ArenaReport(placement.size_bytes, placement.bound_bytes, len(problem.buffers), placement.by)
