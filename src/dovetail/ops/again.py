"""What runs where a node runs again: the same results, and nothing that must happen once.

    y, m, s, rm2, rv2 = native_batch_norm(x, w, b, rm, rv, True, 0.1, eps)   the first time, with new statistics
    y, m, s = _native_batch_norm_legit.no_stats(x, w, b, True, 0.0, eps)      each further time

In training mode, batch norm reads its running statistics only to make new ones. So what it normalizes can be made again
after they have been written. On the CPU both operators are one kernel, which is given no statistics in the second.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value
from dovetail.ops.prims import FunctionalForm

aten = torch.ops.aten

_RESULTS = 3  # what was normalized, mean, inverse deviation
_OPERANDS = 8  # input, weight, bias, running mean and variance, training, momentum, epsilon


def again_form(node: Node) -> Node:
    """The node that gives the same bits for those results that it has; the node itself for most."""
    return _without_statistics(node) if _updates_statistics(node) else node


def _updates_statistics(node: Node) -> bool:
    """Whether it is a batch norm in training mode whose results do not tell whether it has running statistics."""
    target = node.target
    is_norm = target is aten._native_batch_norm_legit_functional.default or (
        isinstance(target, Prim)
        and isinstance(target.run, FunctionalForm)
        and target.run.op in (aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
    )
    if not is_norm or node.kwargs or len(node.args) != _OPERANDS or node.args[5] is not True:
        return False
    values = [x for x in node.args[:5] if isinstance(x, Value)]
    if len([x for x in node.args[3:5] if isinstance(x, Value)]) < len(node.args[3:5]):
        return False
    metas = [value.tensor for value in values]
    # Where numbers of two types meet, the dtype of any parameter decides that of mean and deviation.
    types = {meta.dtype for meta in metas}
    parameters = {x.tensor.dtype for x in node.args[1:5] if isinstance(x, Value)}
    is_known = len(types) == 1 or (len(parameters) == 1 and isinstance(node.args[1], Value))
    return is_known and all(meta.device.type == "cpu" for meta in metas)


def _without_statistics(node: Node) -> Node:
    x, weight, bias, _, _, training, _, epsilon = node.args
    target = aten._native_batch_norm_legit.no_stats
    return replace(
        node,
        target=target,
        args=(x, weight, bias, training, 0.0, epsilon),
        outputs=node.outputs[:_RESULTS],
        unpack=True,
    )
