"""Whether a program's time goes into calls from Python, rather than into work; said before anything runs.

Machine code makes calls cheap, and takes time until it is there: it is worth it where calls count. A rule with costs
that are part of the source gives one answer for a program on every machine.
"""

from __future__ import annotations

from dovetail.ir.program import Program
from dovetail.ops.call_costs import call_cost
from dovetail.ops.packing import reads_panels

_LEAST_SAVED_US = 25.0  # of a call. A process needs about a quarter of a second until its first machine code is there.
_LEAST_SHARE = 0.1
_LEAST_SAVED_BESIDE_PANELS_US = 8.0  # what makes machine code is there already
_LEAST_SHARE_BESIDE_PANELS = 0.01
_LEAST_SAVED_FOR_SPEED_US, _LEAST_SHARE_FOR_SPEED = 2.0, 0.25


def is_call_bound(program: Program, *, for_speed: bool = False) -> bool:
    """Whether machine code would save a good part of the program's time. for_speed: of a call, whatever it takes until
    the first one. Cost: O(nodes + operands).
    """
    costs = [call_cost(node) for node in program.nodes]
    saved_us = sum(cost.saved_us for cost in costs)
    total_us = sum(cost.total_us for cost in costs)
    if for_speed and saved_us >= max(_LEAST_SAVED_FOR_SPEED_US, _LEAST_SHARE_FOR_SPEED * total_us):
        return True
    least_us, share = _LEAST_SAVED_US, _LEAST_SHARE
    if any(reads_panels(node.target) for node in program.nodes):
        least_us, share = _LEAST_SAVED_BESIDE_PANELS_US, _LEAST_SHARE_BESIDE_PANELS
    return saved_us >= least_us and saved_us >= share * total_us
