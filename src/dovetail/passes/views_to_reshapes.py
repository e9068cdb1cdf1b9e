"""Rewrite views of another shape as reshapes, so that layouts can change afterwards.

A view needs strides that show the new shape in the same memory; in another layout there may be none, and the view
fails. A reshape is a view where there are such strides, and a copy where there are none.

    v = view(a, [2, 12])   ->   v = reshape(a, [2, 12])

The program means the same as before, and each reshape is a view still, until a layout changes.

Cost: O(nodes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dovetail.ir.program import Node, Program
from dovetail.ops.layouts import is_reshaping_view

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewsToReshapesReport:
    """rewritten: names of the views that became reshapes, in program order."""

    rewritten: tuple[str, ...]

    def __str__(self) -> str:
        return f"wrote {len(self.rewritten)} views as reshapes"


def views_to_reshapes(program: Program) -> tuple[Program, ViewsToReshapesReport]:
    """The program with `reshape` in place of `view` and `_unsafe_view`; itself where there is none."""
    rewritten: list[str] = []

    def reshaped(node: Node) -> Node:
        if not is_reshaping_view(node):
            return node
        rewritten.extend(value.name for value in node.results())
        return replace(node, target=aten.reshape.default)

    nodes = tuple(map(reshaped, program.nodes))
    return program.replace_nodes(nodes), ViewsToReshapesReport(tuple(rewritten))
