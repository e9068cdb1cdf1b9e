"""Activations, by the names that `ops.packed` has for them."""

from __future__ import annotations

import torch

from dovetail.ir.program import Node
from dovetail.ops.arguments import arguments_of

aten = torch.ops.aten

_PLAIN = {
    aten.relu.default: "relu",
    aten.silu.default: "silu",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
    aten.hardswish.default: "hardswish",
    aten.hardsigmoid.default: "hardsigmoid",
}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def activation_of(node: Node) -> str | None:
    """The name of the activation that a node applies to a tensor of floats; None where it does something else."""
    if node.target is aten.gelu.default:
        return _GELUS.get(str(arguments_of(node)["approximate"]))
    if node.target is aten.hardtanh.default:
        named = arguments_of(node)
        return "relu6" if (named["min_val"], named["max_val"]) == (0, 6) else None
    return _PLAIN.get(node.target)  # type: ignore[call-overload, no-any-return]
