"""The forms in which programs hold a batch norm, read as one thing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dovetail.analysis.polynomials import polynomial_of
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Target, TensorMeta, Value
from dovetail.ir.sizes import product
from dovetail.ops.arguments import arguments_of
from dovetail.ops.prims import FunctionalForm

aten = torch.ops.aten

_NORMS: frozenset[Target] = frozenset(
    {
        aten.batch_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
        aten._batch_norm_no_update.default,
        aten.cudnn_batch_norm.default,
        aten.miopen_batch_norm.default,
    }
)


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """`(input - mean) / sqrt(var + eps) * weight + bias` along dimension 1; weight and bias may be missing.

    mean, var: None where the statistics are those of the batch. trains: whether they are, and may be updated.
    """

    node: Node
    result: Value
    input: Value
    weight: Value | None
    bias: Value | None
    mean: Value | None
    var: Value | None
    eps: float
    trains: bool

    def parameters(self) -> tuple[Value, ...]:
        """The tensors along the channels that there are."""
        return tuple(value for value in (self.weight, self.bias, self.mean, self.var) if value is not None)


def batch_norm_of(node: Node) -> BatchNorm | None:
    """The node as a batch norm; None for any other."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if isinstance(run, FunctionalForm):  # of a norm that trains
        node = replace(node, target=run.op)
    if node.target not in _NORMS or not node.outputs or node.outputs[0] is None:
        return None
    given = arguments_of(node)
    eps = given.get("eps", given.get("epsilon"))
    input = given["input"]
    assert isinstance(input, Value), "a batch norm has an input"
    if not isinstance(eps, int | float):
        return None
    weight, bias, mean, var = (
        value if isinstance(value, Value) else None
        for value in map(given.get, ("weight", "bias", "running_mean", "running_var"))
    )
    trains = given.get("training") not in (False, None) or mean is None or var is None
    return BatchNorm(node, node.outputs[0], input, weight, bias, mean, var, eps, trains)


def lies_as_norms_do(meta: TensorMeta) -> bool:
    """Whether a batch norm of a tensor that lies like this gives one that does, whatever fakes say.

    It gives a contiguous tensor if it gets one (steps of dimensions of size 1 do not count), or one in channels-last
    order if it gets such a one, else a contiguous one. Sizes that are symbols are taken to be more than 1.
    """
    rank = len(meta.shape)
    if _is_packed(meta, tuple(range(rank))):
        return True
    is_ambiguous = meta.shape[1] == 1 or all(size == 1 for size in meta.shape[2:])
    return rank in (4, 5) and not is_ambiguous and _is_packed(meta, (0, *range(2, rank), 1))


def _is_packed(meta: TensorMeta, order: tuple[int, ...]) -> bool:
    """Whether the steps are those of a tensor without gaps, the dimensions of which lie in this order."""
    for place, dim in enumerate(order):
        inner = [meta.shape[other] for other in order[place + 1 :]]
        wanted = product(tuple(max(size, 1) if isinstance(size, int) else size for size in inner))
        if polynomial_of(meta.stride[dim]) != polynomial_of(wanted):
            return False
    return True
