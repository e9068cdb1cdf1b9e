"""Which results of a recorded call were computed from others, as autograd sees it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from dovetail.capture.engine import Root
from dovetail.errors import UnsupportedOutput
from dovetail.ir.calling import CallPlan
from dovetail.torch_compat.graph_leaves import nodes_below


def edge_of(root: Root) -> GradientEdge:
    """Where the gradient of a result arrives."""
    return root if isinstance(root, GradientEdge) else get_gradient_edge(root)


def passed_results(plan: CallPlan, roots: Sequence[Root]) -> dict[int, tuple[int, ...]]:
    """For each forward output: the others that its gradient comes by on its way to the leaves, if there are any.

    roots: for each forward output, where its gradient arrives. Parts of wrappers, and what inputs hold, are left out.
    """
    others = {slot for pack in plan.packs for slot in pack.slots} | {write.slot for write in plan.writes}
    ends = [number for number, _ in enumerate(roots) if plan.differentiable[number] and number not in others]
    edges = {number: edge_of(roots[number]) for number in ends}
    marks = {(edge.node, edge.output_nr): 1 << number for number, edge in edges.items()}
    if len(marks) < 2:
        return {}
    behind = _behind([edge.node for edge in edges.values()], marks)
    passed = {number: behind[edge.node] & ~(1 << number) for number, edge in edges.items()}
    return {number: tuple(k for k in edges if mask >> k & 1) for number, mask in passed.items() if mask}


def _behind(nodes: Sequence[Any], marks: Mapping[tuple[Any, int], int]) -> dict[Any, int]:
    """For each node that can be reached: the marks on the edges that leave it, and behind these."""
    found: dict[Any, int] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting[-1]
        if node in found:
            waiting.pop()
            continue
        following = [(after, place) for after, place in node.next_functions if after is not None]
        unknown = [after for after, _ in following if after not in found]
        if unknown:
            waiting += unknown
            continue
        mask = 0
        for after, place in following:
            mask |= found[after] | marks.get((after, place), 0)
        found[node] = mask
        waiting.pop()
    return found


def refuse_made_leaf_beside(results: Sequence[object], inputs: Container[int]) -> None:
    """Refuse results that a gradient would reach from another result: a call makes each of them by itself.

    inputs: ids of those among them that are inputs.
    """
    tensors = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad and id(x) not in inputs]
    made = {id(x) for x in tensors if x.is_leaf}
    for node in nodes_below(tensors) if made else ():
        if id(getattr(node, "variable", None)) in made:
            raise UnsupportedOutput(
                what="a leaf that it makes, and a result that is computed from it",
                reason="a call makes each of its results by itself, so that no gradient would reach the leaf",
                hint="make the leaf before the call, and pass it as an argument",
            )
