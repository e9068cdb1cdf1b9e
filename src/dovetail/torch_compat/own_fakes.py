"""Operators for which torch's fakes have no answer, or whose sizes they take for unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from dovetail.torch_compat.dispatch import without_modes
from dovetail.torch_compat.symbolic_strides import lies_in_a_format

_aten = torch.ops.aten


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, _: Any, target_lengths: Sequence[int], *__: Any) -> Any:
    """Torch's fakes take the sizes for unknown, even where the lengths are numbers."""
    length, batch = log_probs.shape[:2]
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, length, 2 * max(target_lengths, default=0) + 1))


def _ctc_loss_of_unknown_lengths(log_probs: Any, *_: Any) -> Any:
    """As above, where the lengths are data: torch's fakes have no symbol for the size. Raises: as `nonzero` does."""
    length, batch = log_probs.shape[:2]
    width = _aten.nonzero.default(log_probs.new_empty((2 * length + 1,))).shape[0]
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, length, width))


def _ctc_gradient(_: Any, log_probs: torch.Tensor, *__: Any) -> torch.Tensor:
    """Torch has no fakes of it, where the lengths are data."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _gradient_of_shrinking(gradient: torch.Tensor, x: torch.Tensor, _: Any) -> torch.Tensor:
    """Elementwise. Torch's fakes want known sizes."""
    return _aten.mul.Tensor(gradient, x)


def _bags(op: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's fakes make a list of bags for sums in bfloat16, where the kernel of a CPU makes none."""

    def run(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> Any:
        given: list[Any] = [*rest, *(False, 0, False, None, False, -1)[len(rest) :]]
        mode, weights, padding = given[1], given[3], given[5]
        out, bags, *others = op(weight, indices, offsets, *rest)
        has_none = weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and weight.stride(1) == 1
        if has_none and mode == 0 and padding < 0 and (weights is None or weights.stride(0) == 1):
            bags = offsets.new_empty((0,))
        return out, bags, *others

    return run


@cache
def _said_of_layouts() -> str:
    """What group norms of this torch say to a tensor that is in no memory format; "" where they take it."""
    with without_modes(), torch.no_grad():
        rows = torch.zeros(1, 3, 2, device="cpu").mT
        try:
            _aten.native_group_norm.default(rows, None, None, 1, 2, 3, 1, 1e-5)
        except RuntimeError as error:
            return str(error)
    return ""


def _group_norm(x: torch.Tensor, *rest: Any) -> Any:
    """Torch's fakes take tensors in any layout, which kernels of a CPU may not. Raises: RuntimeError, as these do."""
    if x.device.type == "cpu" and not lies_in_a_format(x) and (said := _said_of_layouts()):
        raise RuntimeError(said)
    return _aten.native_group_norm.default(x, *rest)


def _in_order(place: int) -> Callable[..., torch.Tensor]:
    """A contiguous tensor of the shape of an operand, in its dtype."""
    return lambda *operands: operands[place].new_empty(operands[place].shape)


OWN_FAKES: dict[object, Callable[..., Any]] = {
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss_of_unknown_lengths,
    _aten._ctc_loss_backward.Tensor: _ctc_gradient,
    _aten.native_group_norm.default: _group_norm,
    _aten._embedding_bag.default: _bags(_aten._embedding_bag.default),
    _aten._embedding_bag_forward_only.default: _bags(_aten._embedding_bag_forward_only.default),
    _aten.hardshrink_backward.default: _gradient_of_shrinking,
    _aten.softshrink_backward.default: _gradient_of_shrinking,
    _aten.multi_margin_loss_backward.default: _in_order(1),
    _aten.multilabel_margin_loss_backward.default: _in_order(1),
    _aten._standard_gamma_grad.default: _in_order(0),
    _aten._dirichlet_grad.default: _in_order(0),
    _aten._sample_dirichlet.default: _in_order(0),
    _aten.binomial.default: _in_order(0),
}
"""By operator, what gives its results for its arguments."""

DRAWN_BY_REFERENCE: frozenset[object] = frozenset(
    getattr(getattr(_aten, name), overload)
    for name in ("cauchy", "exponential", "geometric", "log_normal")
    for name, overload in ((name, "default"), (name, "out"), (f"{name}_", "default"))
)
"""Draws whose fakes are torch's references in Python, which refuse a generator."""
