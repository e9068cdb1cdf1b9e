"""Checks of `torch_compat.view_nodes`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

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


def check_takes_gradient_like() -> str | None:
    """The node of a view of a fake is another one's where the base was transposed in place and written."""
    found: list[bool] = []
    for is_transposed in (False, True):
        with FakeTensorMode():
            base = torch.ones(3, 4, requires_grad=True) * 1
            row = base[0]
            (base.t_() if is_transposed else base).sigmoid_()
            found.append(view_nodes.takes_gradient_like(row.grad_fn, row))
    return first_difference(("whether it is its own", found, [True, False]))


def _told(ask: Callable[[object], bool]) -> list[bool]:
    """The answers about what a function mode is told of for these lines."""
    answers: list[bool] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            answers.append(ask(func))
            return func(*args, **(kwargs or {}))

    tensor = torch.zeros(2)
    with Mode():
        tensor._base, tensor._is_view(), tensor.detach_(), torch.detach_(tensor), tensor.requires_grad_()
        tensor.requires_grad = False
        tensor.dim()
    return answers


def check_asks_whether_view() -> str | None:
    """A function mode is told of each such question."""
    expected = [True, True, True, True, False, False, False]
    return first_difference(("what is asked for", _told(view_nodes.asks_whether_view), expected))


def check_asks_for_base() -> str | None:
    """A function mode is told of the question."""
    expected = [True, False, False, False, False, False, False]
    return first_difference(("what is asked for", _told(view_nodes.asks_for_base), expected))


def check_switches_gradient() -> str | None:
    """A function mode is told of both ways."""
    expected = [False, False, False, False, True, True, False]
    return first_difference(("what is switched", _told(view_nodes.switches_gradient), expected))


CHECKS = (
    check_node_made_since,
    check_nodes_of_view,
    check_takes_gradient_like,
    check_asks_whether_view,
    check_asks_for_base,
    check_switches_gradient,
)
