"""Whether a cluster pays: a call of machine code has a price, and few small nodes cost less one by one.

Microseconds of Python and of torch's dispatch, not of work: that is the same either way, except that a loop that many
nodes share goes through memory once. Of large tensors this is worth more than any call costs.

Source: fitted to 67 programs of 2 to 40 nodes, called as one and node by node in turns, torch 2.13, Intel Xeon, with a
margin of 0.1 us; views, conditions and symbols on an AMD EPYC; calls without ctypes on a Xeon again. Only the relations
matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.execute.native.kinds import KINDS
from dovetail.execute.native.rows import ReadyRow, RowClaim
from dovetail.ir.program import Node, Value

LARGE = 4096
"""Elements from which on passes over memory count more than calls."""

_CALL, _POINTER, _NUMBER, _ROW, _CONDITION, _SYMBOL = 0.5, 0.03, 0.07, 0.12, 0.4, 0.15
_MADE_LIKE, _RESULT = 0.8, 0.4
_VIEW, _INTO, _NEW, _MORE, _WITH_NUMBER = 0.7, 0.7, 1.2, 0.8, 1.3


def cost_of_call(rows: Sequence[ReadyRow], made: Sequence[tuple[Value, Value]], results: int, views: int) -> float:
    """What a cluster costs. made: results that get memory before. results: those that the call makes. views: that run
    after it.
    """
    cost = _CALL + views * _VIEW + any(row.condition is not None for row in rows) * _CONDITION
    cost += len(made) * _MADE_LIKE + results * _RESULT
    for row in rows:
        cost += _ROW + sum(pointer is not None for pointer in row.pointers) * _POINTER + len(row.numbers) * _NUMBER
        cost += sum(not isinstance(each, int) for each in (row.items, *row.counts)) * _SYMBOL
    return cost


def cost_of_nodes(claims: Sequence[RowClaim], views: Sequence[Node]) -> float:
    """What the same nodes cost one by one."""
    cost = len(views) * _VIEW
    for claim in claims:
        cost += _INTO if claim.into is not None else _NEW + _MORE * (len(claim.made) - 1)
        tensors = sum(isinstance(x, Value) and x.is_tensor for x in claim.operands)
        cost += (tensors < len(claim.operands)) * _WITH_NUMBER + KINDS[type(claim)].alone
    return cost


def has_large_loops(claims: Sequence[RowClaim], rows: int) -> bool:
    """Whether several claims share a loop over many elements, or over a number that is not known."""
    counts = [claim.written.tensor.numel() for claim in claims if claim.layout is not None]
    return rows < len(claims) and any(not isinstance(count, int) or count >= LARGE for count in counts)
