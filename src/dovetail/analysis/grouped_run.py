"""A program as it runs with groups of nodes: for what it holds when, to the byte.

    a = gelu(x); b = a * 2; c = b + x        group of all three, with memory of its own        ->    c, own = group(x)

Each group is one node, which makes what others see and, while it runs, what it takes besides. It is never run: it is
there for `analysis.liveness` and for reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from dovetail.ir.draft import Draft
from dovetail.ir.node_groups import NodeGroup
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ops.prims import REACHED

OWN = "own memory"
"""Begins the names of values that stand for what groups take besides."""


def grouped_run(program: Program, groups: Mapping[int, NodeGroup]) -> Program:
    """The program with a node in place of each group. groups: by the numbers of their first nodes."""
    if not groups:
        return program
    draft = Draft(program)
    last, returned = _last_uses(program), program.output_storages()
    nodes: list[Node] = []
    at = 0
    while at < len(program.nodes):
        group = groups.get(at)
        if group is None:
            nodes.append(program.nodes[at])
            at += 1
        else:
            seen = {s for s, end in last.items() if end > group.last} | returned | program.input_storages()
            nodes.append(_as_one(draft, program.nodes[group.first : group.last + 1], group, seen))
            at = group.last + 1
    return replace(program, nodes=tuple(nodes))


def _as_one(draft: Draft, nodes: tuple[Node, ...], group: NodeGroup, seen: set[int]) -> Node:
    """The node that stands for a group. seen: storages that others see behind it."""
    made = [value for node in nodes for value in node.results()]
    inside, shown = frozenset(made), seen | {value.tensor.storage for value in group.taken}
    read = [value for node in nodes for value in node.operands() if value.is_tensor and value not in inside]
    results = [value for value in made if not value.is_tensor or value.tensor.storage in shown]
    if group.own_bytes:
        meta = TensorMeta((group.own_bytes,), (1,), 0, torch.uint8, torch.device("cpu"), draft.storage())
        results.append(Value(draft.name(OWN), meta))
    again = all(node.recomputed for node in nodes)
    operands = (list(dict.fromkeys(read)), "group")
    return Node(
        REACHED, operands, outputs=tuple(results), origin=nodes[0].origin, phase=nodes[0].phase, recomputed=again
    )


def _last_uses(program: Program) -> dict[int, int]:
    """For each storage, the number of the last node that touches it."""
    return {
        value.tensor.storage: at
        for at, node in enumerate(program.nodes)
        for value in (*node.operands(), *node.results())
        if value.is_tensor
    }
