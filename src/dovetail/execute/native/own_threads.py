"""Which programs run on threads of dovetail's own.

Threads of torch's pool look for more work for milliseconds behind each parallel region, and then keep any other thread
from running that shares their processor. So threads of our own are for programs that leave the pool alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from dovetail.analysis.reads import is_view
from dovetail.execute.native.driver import APART, LOOSE, THREADED
from dovetail.execute.native.rows import ReadyRow
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.facts import facts_of

_READS_PARTS = {torch.ops.aten.embedding.default, torch.ops.aten.index_select.default}
"""They touch as much as they give."""


def leaves_pool_alone(program: Program, nodes: Collection[Node], rows: Iterable[ReadyRow]) -> bool:
    """Whether there is work in a program's rows that threads share, and no function of torch's shares out any.

    nodes: that rows run.
    """
    marks = {row.marks for row in rows}
    if LOOSE not in marks or APART in marks:
        return False
    return not any(_may_be_shared(node) for node in program.nodes if node not in nodes)


def _may_be_shared(node: Node) -> bool:
    if is_view(node) and facts_of(node.target).is_pure:
        return False
    touched = node.results() if node.target in _READS_PARTS else (*node.operands(), *node.results())
    return any(map(_is_large, touched))


def _is_large(value: Value) -> bool:
    count = value.tensor.numel() if value.is_tensor else 0
    return not isinstance(count, int) or count >= THREADED
