"""Checks of `torch_compat.view_nodes`."""

from __future__ import annotations

import contextlib

import torch
from torch._subclasses import FakeTensorMode

from dovetail.torch_compat import autograd, view_nodes
from dovetail.torch_compat.checks.difference import first_difference


def check_node_made_since() -> str | None:
    """It is new after a write of the base, and not before."""
    base = torch.ones(4, 6, requires_grad=True) * 1
    view = base.t()
    number = autograd.next_sequence_number()
    with torch.no_grad():
        first = view_nodes.node_made_since(view, number)
        base.mul_(2)
        second = view_nodes.node_made_since(view, number)
    return first_difference(("before and after", [node is None for node in (first, second)], [True, False]))


def check_nodes_of_view() -> str | None:
    """On fakes, views are made again one by one, where real ones become one `as_strided`; the ends are found."""
    found: list[list[str]] = []
    for around in (FakeTensorMode(), contextlib.nullcontext()):
        with around:
            base = torch.ones(4, 6, requires_grad=True) * 1
            parts = torch.view_as_complex(torch.ones(4, 6, 2, requires_grad=True) * 1).clone()
            view, other = base.t()[1:], parts.real
            base.mul_(2)
            parts.mul_(2)
            nodes = view_nodes.nodes_of_view(view.grad_fn, base)
            found.append([node.name() for node in nodes or ()])
            found.append([node.name() for node in view_nodes.nodes_of_view(other.grad_fn, parts) or ()])
    leaf = torch.ones(4, 6, requires_grad=True)
    ends = view_nodes.nodes_of_view(leaf.t().grad_fn, leaf)
    return first_difference(
        ("nodes of a fake view", found[:2], [["SliceBackward0", "TBackward0"], []]),
        ("nodes of a real view", found[2:], [["AsStridedBackward0"] * 2, []]),
        ("a view of a leaf", [node.name() for node in ends or ()], ["TBackward0"] * 2),
    )


CHECKS = (check_node_made_since, check_nodes_of_view)
