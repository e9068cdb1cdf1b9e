"""Whether a program's time goes into calls from Python, rather than into work; said before anything runs.

Machine code makes calls cheap, and takes time until it is there: it is worth it where calls count. A rule with costs
that are part of the source gives one answer for a program on every machine.
"""

from __future__ import annotations

from dovetail.ir.program import Program
from dovetail.ops.call_costs import call_cost

_LEAST_SAVED_US = 25.0  # of a call. A process needs about a quarter of a second until its first machine code is there.
_LEAST_SHARE = 0.1


def is_call_bound(program: Program) -> bool:
    """Whether machine code would save a good part of the program's time. Cost: O(nodes + operands)."""
    costs = [call_cost(node) for node in program.nodes]
    saved_us = sum(cost.saved_us for cost in costs)
    return saved_us >= _LEAST_SAVED_US and saved_us >= _LEAST_SHARE * sum(cost.total_us for cost in costs)
