"""Convolutions with a constant weight, with the operators that follow, as `passes.prepack` reads them.

a = convolution(x, w, b);  c = add(a, identity);  d = relu(c)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from dovetail.ir.program import Node, Program, Value
from dovetail.ops.arguments import arguments_of
from dovetail.passes.activations import activation_of
from dovetail.passes.convolution_forms import Convolution, convolution_of
from dovetail.passes.linear_calls import Uses

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionCall:
    """`activation(convolution + addend)`. nodes: those that it stands for, from the convolution to the last one."""

    form: Convolution
    nodes: tuple[Node, ...]
    addend: Value | None
    activation: str

    @property
    def result(self) -> Value:
        """What is known to the rest of the program."""
        return self.nodes[-1].results()[0]


def convolution_calls(
    program: Program, uses: Uses, constants: Collection[Value]
) -> tuple[list[ConvolutionCall], list[tuple[str, str]]]:
    """The calls of a program; and names of other convolutions' results, each with a reason.

    Of two convolutions whose sum is taken, the later one takes the other as its addend.
    """
    calls: list[ConvolutionCall] = []
    left: list[tuple[str, str]] = []
    taken: set[Node] = set()
    for node in reversed(program.nodes):
        form = convolution_of(node, constants, {torch.float32})
        if isinstance(form, str):
            left.append((node.results()[0].name, form))
        elif form is not None and form.x in constants:
            left.append((form.result.name, "CONSTANT: it is computed once"))
        elif form is not None:
            call = _with_what_follows(form, uses, taken)
            taken.update(call.nodes)
            calls.append(call)
    return calls[::-1], left[::-1]


def _with_what_follows(form: Convolution, uses: Uses, taken: Collection[Node]) -> ConvolutionCall:
    nodes: tuple[Node, ...] = (form.node,)
    addend, activation = None, "none"
    user = uses.sole_user(form.result)
    if user is not None and user not in taken:
        addend = _addend(user, form.result)
        if addend is not None:
            nodes = (*nodes, user)
            user = uses.sole_user(user.results()[0])
        name = None if user is None or user in taken else activation_of(user)
        if user is not None and name is not None:
            nodes, activation = (*nodes, user), name
    return ConvolutionCall(form, nodes, addend, activation)


def _addend(node: Node, result: Value) -> Value | None:
    """What a node adds to a value, if it is a tensor of the same kind and shape."""
    if node.target is not aten.add.Tensor:
        return None
    named = arguments_of(node)
    others = [operand for operand in (named["self"], named["other"]) if operand is not result]
    if len(others) != 1 or not isinstance(others[0], Value) or not others[0].is_tensor or named["alpha"] != 1:
        return None
    other, own = others[0].tensor, result.tensor
    alike = (other.shape, other.dtype, other.device) == (own.shape, own.dtype, own.device)
    return others[0] if alike else None
