"""Ask autograd for gradients of recorded outputs, also through reentrant checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import CheckpointFunction

from dovetail.capture.node_state import nodes_left_alone
from dovetail.capture.origins import OriginTracker
from dovetail.errors import BackwardInside, GradientOfResult, UnsupportedTensor
from dovetail.torch_compat.autograd import refused_backward, running_node_name, viewed_tensor
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.graph_leaves import nodes_below

Root = torch.Tensor | GradientEdge

_HISTORY = "a tensor with a gradient history of its own, beside a reentrant checkpoint"
_WITHOUT_REENTRANT = "call checkpoint(..., use_reentrant=False)"
_WITHOUT = f"pass it as an argument, or {_WITHOUT_REENTRANT}"


def gradients_of(
    outputs: Sequence[Any], leaves: Sequence[Any], arriving: Sequence[torch.Tensor], between: int = 0
) -> list[torch.Tensor | None]:
    """The gradient of each leaf, None where autograd gives none; the graph is kept for another pattern.

    outputs, leaves: tensors and gradient edges. between: how many of the last edges are none of leaves: what arrives
    there is wanted, and flows on.

    `torch.autograd.grad` is refused by a reentrant checkpoint, which runs a backward of its own that accumulates into
    `.grad`; with one in the graph, this does the same, and puts every `.grad` back. Raises: UnsupportedTensor.
    """
    with nodes_left_alone(outputs):
        return _gradients_of(outputs, leaves, arriving, between)


def _gradients_of(
    outputs: Sequence[Any], leaves: Sequence[Any], arriving: Sequence[torch.Tensor], between: int
) -> list[torch.Tensor | None]:
    if not _has_reentrant_checkpoint(outputs):
        with _ending_at(leaf for leaf in leaves[: len(leaves) - between] if isinstance(leaf, GradientEdge)):
            return list(torch.autograd.grad(outputs, leaves, arriving, allow_unused=True, retain_graph=True))
    if between:
        raise GradientOfResult(reason="it comes by a reentrant checkpoint", hint=_WITHOUT_REENTRANT)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise UnsupportedTensor(name="a tensor that it closes over", kind=_HISTORY, hint=_WITHOUT)
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(outputs, arriving, retain_graph=True)
        return [leaf.grad for leaf in leaves]
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad


@contextlib.contextmanager
def _ending_at(edges: Iterable[GradientEdge]) -> Iterator[None]:
    """While active, no gradient flows on from these: what lies behind is asked when the program runs."""
    with contextlib.ExitStack() as stack:
        for node in dict.fromkeys(edge.node for edge in edges):
            stack.callback(node.register_prehook(lambda gradients: (None,) * len(gradients)).remove)
        yield


def roots_of(outputs: Sequence[torch.Tensor | None]) -> list[Any]:
    """Where gradients arrive that are for outputs, as autograd sees these now: a `Root` for each tensor.

    A real tensor, which the program has met, and its views get other histories as soon as the program runs.
    """
    return [None if output is None else _root(output) for output in outputs]


def _root(output: torch.Tensor) -> Root:
    if is_fake(viewed_tensor(output)) or output.grad_fn is None:
        return output
    return get_gradient_edge(output)


def as_taken(args: Sequence[Any]) -> Sequence[Any]:
    """Arguments of `new_empty_strided`, for the memory that a weight's first gradient lies in.

    A gradient that is recorded is copied to there, with the weight's strides, because its value is held. Eager mode
    takes the gradient itself, if it has these strides but for dimensions of size 1: kernels choose by those as well.
    Source: `accumulate_grad.h` and `layout_utils.h` of torch.
    """
    gradient, shape, stride = args[:3]
    if torch.is_grad_enabled() or running_node_name() != "torch::autograd::AccumulateGrad":
        return args
    steps = list(zip(shape, gradient.stride(), stride, strict=True))
    is_taken = all(size == 1 or mine == wanted for size, mine, wanted in steps)
    return (gradient, shape, list(gradient.stride()), *args[3:]) if is_taken else args


@contextlib.contextmanager
def without_backward(origins: OriginTracker) -> Iterator[None]:
    """Refuse code that calls backward itself: leaves get their `.grad` behind the back of what is recorded.

    Raises: BackwardInside.
    """

    def refuse() -> NoReturn:
        raise BackwardInside(origin=origins.here())

    with refused_backward(refuse):
        yield


def _has_reentrant_checkpoint(outputs: Sequence[Any]) -> bool:
    wanted = f"{CheckpointFunction.__name__}Backward"
    return any(node.name() == wanted for node in nodes_below(outputs))
