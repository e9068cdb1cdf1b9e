"""Rewrite copies of views as a view and a copy of it.

    b = select_copy(a, 0, 1)       ->   v = select(a, 0, 1); b = clone(v)
    b, c = split_copy(a, 2)        ->   v, w = split(a, 2); b = clone(v); c = clone(w)

`functionalize(remove="mutations_and_views")` gives a program of nothing else. With the copy apart from the view, it is
known which bytes are read, and a copy that protects nothing can go by itself (`analysis.inplace`). Bitwise.
A view whose offset is known only at run time is left unchanged. Cost: O(nodes).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, Value
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.ops.views import viewed_meta
from dovetail.ops.writing_forms import view_of_copy
from dovetail.torch_compat.dispatch import Overload


def split_view_copies(program: Program) -> Program:
    """The program with copies of views in two steps; itself if it has none."""
    draft = Draft(program)
    for node in program.nodes:
        view = view_of_copy(node.target)
        draft.nodes += _apart(node, view, draft) if view is not None else [node]
    return draft.finish()


def _apart(node: Node, view: Overload, draft: Draft) -> list[Node]:
    base = node.args[0]
    if not isinstance(base, Value) or node.kwargs:
        return [node]
    shown: list[Value | None] = []
    copies: list[Node] = []
    for place, copy in enumerate(node.outputs):
        if copy is None:
            shown.append(None)
            continue
        meta = viewed_meta(view, place if node.unpack else None, node.args[1:], base.tensor, copy.tensor)
        if meta is None:
            return [node]
        made = Value(draft.name(f"{copy.name}_view"), meta)
        shown.append(made)
        copies.append(_copy(node, made, copy))
    return [replace(node, target=view, outputs=tuple(shown)), *copies]


def _copy(node: Node, source: Value, result: Value) -> Node:
    meta = result.tensor
    if result.tensor.is_contiguous():
        keep = (("memory_format", torch.contiguous_format),)
        return replace(
            node, target=torch.ops.aten.clone.default, args=(source,), kwargs=keep, outputs=(result,), unpack=False
        )
    args: tuple[Operand, ...] = (source, list(meta.shape), list(meta.stride), meta.dtype, meta.device)
    return replace(node, target=COPY_TO_LAYOUT, args=args, outputs=(result,), unpack=False)
