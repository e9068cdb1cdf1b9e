"""What must hold of operands that a kernel of torch's trusts, because it would read or write outside them.

Recorded programs only pass what autograd or a module gave, so it holds there. A program from a file may pass anything:
`checked` gives what is called in the operator's place. Which kernels need it was found by trial
(`tests/artifact/kernel_probe.py`); operators that trust more than is checked here cannot be named in a file at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.errors import RefusedOperands
from dovetail.ir.prim import Prim
from dovetail.ops.bounded import BOUNDED
from dovetail.ops.layer_preconditions import (
    GATES,
    Refused,
    attention_layer,
    cells,
    encoder_layer,
    of_length,
    one_of_each,
    pack,
    packed_layer,
    padded,
    require,
    rnn_layer,
    within,
)
from dovetail.ops.prims import InGradMode
from dovetail.torch_compat.dispatch import Overload, schema_of

Check = Callable[[Mapping[str, Any]], None]


def _same_shape(*names: str) -> Check:
    def check(given: Mapping[str, Any]) -> None:
        shapes = {tuple(given[name].shape) for name in names if given.get(name) is not None}
        require(len(shapes) <= 1, f"{', '.join(names)} have other shapes")

    return check


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pooled(given: Mapping[str, Any], dims: int) -> None:
    grad, source = given["grad_output"], given["self"]
    require(grad.dim() == source.dim() and grad.dim() in (dims + 1, dims + 2), "the gradient has another rank")
    require(grad.shape[:-dims] == source.shape[:-dims], "the gradient has another number of planes")
    require(grad.dtype == source.dtype, "the gradient has another dtype")


def _adaptive_average(dims: int) -> Check:
    return lambda given: _pooled(given, dims)


def _average(dims: int) -> Check:
    forward = torch.ops.aten.avg_pool2d.default if dims == 2 else torch.ops.aten.avg_pool3d.default

    def check(given: Mapping[str, Any]) -> None:
        _pooled(given, dims)
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
        made = forward(given["self"].to("meta"), *[given[name] for name in names])
        require(made.shape == given["grad_output"].shape, "the gradient has another shape than the result")

    return check


def _maximum(dims: int) -> Check:
    def check(given: Mapping[str, Any]) -> None:
        _pooled(given, dims)
        require(given["indices"].shape == given["grad_output"].shape, "there is not one index for each result")
        require(given["indices"].dtype == torch.int64, "the indices are not 64-bit integers")
        within(given["indices"], math.prod(given["self"].shape[-dims:]), "the result of pooling")

    return check


# --- normalization ----------------------------------------------------------------------------------------------------

_PER_CHANNEL = (
    *("weight", "bias", "running_mean", "running_var", "save_mean", "save_var", "save_invstd", "save_rstd"),
    *("mean", "invstd"),
)


def _batch_norm(given: Mapping[str, Any]) -> None:
    source = given["input"]
    require(source.dim() >= 2, "the input has no channels")
    of_length(given, _PER_CHANNEL, source.shape[1])
    for name in ("grad_out", "grad_output"):
        if given.get(name) is not None:
            require(given[name].shape == source.shape, "the gradient has another shape than the input")


def _layer_norm_backward(given: Mapping[str, Any]) -> None:
    source, inner = given["input"], list(given["normalized_shape"])
    rank = source.dim() - len(inner)
    require(rank >= 0 and list(source.shape[rank:]) == inner, "the input does not end with the normalized shape")
    require(given["grad_out"].shape == source.shape, "the gradient has another shape than the input")
    of_length(given, ("mean", "rstd"), math.prod(source.shape[:rank]))
    of_length(given, ("weight", "bias"), math.prod(inner))


def _group_norm(given: Mapping[str, Any]) -> None:
    source, group = given["input"], given["group"]
    require(group > 0 and given["C"] % group == 0, "the groups do not divide the channels")
    sizes = (given["N"], given["C"], given["HxW"])
    require(min(sizes) >= 0 and math.prod(sizes) == source.numel(), "the input does not have the declared size")
    of_length(given, ("weight", "bias"), given["C"])
    of_length(given, ("mean", "rstd"), given["N"] * group)
    _same_shape("grad_out", "input")(given)


# --- losses and lookups -----------------------------------------------------------------------------------------------


def _nll_loss_backward(given: Mapping[str, Any]) -> None:
    scores, target = given["self"], given["target"]
    channel = 0 if scores.dim() == 1 else 1
    outer = [size for dim, size in enumerate(scores.shape) if dim != channel]
    require(scores.dim() in (1, 2, 4) and list(target.shape) == outer, "the target has another shape than the scores")
    of_length(given, ("weight",), scores.shape[channel])
    of_length(given, ("total_weight",), 1)
    grad = given["grad_output"]
    require(grad.numel() == (target.numel() if given["reduction"] == 0 else 1), "the gradient has another size")
    classes = torch.where(target == given["ignore_index"], 0, target)
    within(classes, scores.shape[channel], "the target")


def _embedding_backward(given: Mapping[str, Any]) -> None:
    grad, indices = given["grad_output"], given["indices"]
    require(grad.shape[:-1] == indices.shape and grad.dim() > 0, "there is not one row of the gradient for each index")
    require(given["num_weights"] >= 0, "there are no weights")
    within(indices, given["num_weights"], "the embedding")


def _embedding_bag(given: Mapping[str, Any]) -> None:
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    require(weight.dim() == 2 and indices.dim() == offsets.dim() == 1, "an operand has another rank")
    require(not (indices.dtype.is_floating_point or offsets.dtype.is_floating_point), "the indices are not integers")
    require(0 <= given["mode"] <= 2, "there is no such mode")
    within(indices, weight.shape[0], "the embedding")
    require(-1 <= given["padding_idx"] < weight.shape[0], "the index for padding is not within the embedding")
    bags = offsets.numel() - bool(given["include_last_offset"])
    require(bags > 0 or (bags == 0 and not indices.numel()), "there are no bags")
    if offsets.numel():
        require(int(offsets[0]) == 0 and int(offsets[-1]) <= indices.numel(), "the bags are not within the indices")
        require(bool((offsets[1:] >= offsets[:-1]).all()), "a bag ends before it begins")
    weights = given.get("per_sample_weights")
    if weights is not None:
        require(weights.shape == indices.shape, "there is not one weight for each index")
        require(weights.dtype == weight.dtype, "the dtypes differ")


# --- others -----------------------------------------------------------------------------------------------------------


def _grid_backward(given: Mapping[str, Any]) -> None:
    source, grid, grad = given["input"], given["grid"], given["grad_output"]
    require(source.dim() == grid.dim() == grad.dim(), "the gradient has another rank")
    expected = (*source.shape[:2], *grid.shape[1:-1])
    require(source.shape[0] == grid.shape[0] and tuple(grad.shape) == expected, "the gradient has another shape")
    require(grid.shape[-1] == grid.dim() - 2, "the grid has another number of coordinates")
    require(source.dtype == grid.dtype == grad.dtype, "the dtypes differ")


def _attention(given: Mapping[str, Any]) -> None:
    query, key, value = given["query"], given["key"], given["value"]
    require(query.dim() == key.dim() == value.dim() == 4, "queries, keys and values do not have four dimensions")
    require(query.shape[0] == key.shape[0] and key.shape[:2] == value.shape[:2], "they have other numbers of heads")
    heads, shared = query.shape[1], key.shape[1]  # several heads of queries may share keys and values
    divides = shared > 0 and heads % shared == 0 and "logsumexp" not in given
    require(heads == shared or divides, "they have other numbers of heads")
    require(query.shape[3] == key.shape[3] == value.shape[3], "they have other lengths")
    require(key.shape[2] == value.shape[2], "there is not one key for each value")
    mask = given.get("attn_mask")
    if mask is not None:
        full = (*query.shape[:3], key.shape[2])
        shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        fits = len(shape) == 4 and all(a in (1, b) for a, b in zip(shape, full, strict=True))
        require(fits, "the mask does not fit")
    if "logsumexp" in given:
        require(given["logsumexp"].shape == query.shape[:3], "the saved sums have another shape")
        require(given["grad_out"].shape == given["out"].shape == query.shape, "the gradient has another shape")
        require(given["grad_out"].dtype == given["out"].dtype == query.dtype, "the dtypes differ")


def _fourier(given: Mapping[str, Any]) -> None:
    source, dims = given["self"], list(given["dim"])
    rank = source.dim()
    require(all(-rank <= dim < rank for dim in dims), "a dimension is not one of the input's")
    require(len({dim % rank for dim in dims}) == len(dims), "a dimension occurs twice")
    require(0 <= given["normalization"] <= 2, "there is no such normalization")
    if "last_dim_size" in given:
        last = given["last_dim_size"]
        require(bool(dims) and last >= 1, "there is no last dimension")
        require(source.shape[dims[-1]] == last // 2 + 1, "the last dimension has another size")


def _of_forward(forward: Overload, *names: str, grad: str = "grad_output", source: str = "self") -> Check:
    """The gradient has the shape of what the forward operator makes. names: its operands after the first."""

    def check(given: Mapping[str, Any]) -> None:
        made = forward(given[source].to("meta"), *[given[name] for name in names])
        require(made.shape == given[grad].shape, "the gradient has another shape than the result")
        require(made.dtype == given[grad].dtype, "the gradient has another dtype than the result")

    return check


def _unfold_backward(given: Mapping[str, Any]) -> None:
    whole = torch.empty(given["input_sizes"], device="meta")
    made = whole.unfold(given["dim"], given["size"], given["step"])
    require(made.shape == given["grad_in"].shape, "the gradient has another shape than the result")


def _pivots(given: Mapping[str, Any]) -> None:
    pivots = given["pivots"] if "pivots" in given else given["LU_pivots"]
    whole = next(given[name] for name in ("LU", "LD", "LU_data") if name in given)
    require(whole.dim() >= 2 and pivots.dtype == torch.int32, "there are no pivots")
    require(pivots.shape[:-1] == whole.shape[:-2], "there is not one set of pivots for each matrix")
    require(pivots.shape[-1] == min(whole.shape[-2:]), "there is not one pivot for each row")
    within(pivots.abs() - 1, whole.shape[-2], "the pivots")


def _grouped_product(given: Mapping[str, Any]) -> None:
    """Each offset is where a group ends: in the rows of the left operand, the columns of the right one, or in both."""
    left, right, ends = given["self"], given["mat2"], given["offs"]
    require({left.dim(), right.dim()} <= {2, 3}, "an operand is no matrix, and no stack of matrices")
    require(
        (ends is None) == (left.dim() == right.dim() == 3), "groups are told by offsets, or by a stack in each operand"
    )
    if ends is not None:
        require(ends.dim() == 1 and ends.dtype == torch.int32, "the offsets are not 32-bit integers in a row")
        size = right.shape[-1] if left.dim() == 3 else left.shape[-2 if right.dim() == 3 else -1]
        require(bool((ends.diff() >= 0).all()), "an offset is below the one before it")
        within(ends, size + 1, "the offsets")


_CHECKS: dict[str, Check] = {
    **{
        f"{kind}_pad{dims}d_backward": _of_forward(getattr(torch.ops.aten, f"{kind}_pad{dims}d").default, "padding")
        for kind in ("reflection", "replication")
        for dims in (1, 2, 3)
    },
    "unfold_backward": _unfold_backward,
    **dict.fromkeys(("lu_unpack", "linalg_lu_solve", "linalg_ldl_solve"), _pivots),
    "_adaptive_avg_pool2d_backward": _adaptive_average(2),
    "_adaptive_avg_pool3d_backward": _adaptive_average(3),
    "avg_pool2d_backward": _average(2),
    "avg_pool3d_backward": _average(3),
    "adaptive_max_pool2d_backward": _maximum(2),
    "adaptive_max_pool3d_backward": _maximum(3),
    "max_pool2d_with_indices_backward": _maximum(2),
    "max_pool3d_with_indices_backward": _maximum(3),
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
            *("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update"),
            *("_batch_norm_with_update_functional", "native_batch_norm_backward", "batch_norm_backward"),
        ),
        _batch_norm,
    ),
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm,
    "_softmax_backward_data": _same_shape("grad_output", "output"),
    "_log_softmax_backward_data": _same_shape("grad_output", "output"),
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_backward": _nll_loss_backward,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    "grid_sampler_2d_backward": _grid_backward,
    "grid_sampler_3d_backward": _grid_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _fourier),
    "mkldnn_rnn_layer": rnn_layer,
    **{kind: cells(gates) for kind, gates in GATES.items()},
    **{"dovetail.pack": pack, "dovetail.padded": padded, "dovetail.packed_layer": packed_layer},
    **{"_transformer_encoder_layer_fwd": encoder_layer, "_native_multi_head_attention": attention_layer},
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": one_of_each,
    "_grouped_mm": _grouped_product,
    "_foreach_copy": lambda given: require(len(given["src"]) <= len(given["self"]), "the second list is longer"),
}
CHECKED_OPERATORS = frozenset(_CHECKS)


def checked(target: Callable[..., object]) -> Callable[..., Any] | None:
    """What to call in place of a target that trusts its operands; None where the target may be called as it is.

    What is called raises RefusedOperands where the operands are not what the target trusts them to be.
    """
    if isinstance(target, Prim):
        return _Checked(target, target.run.op) if _wraps_checked(target) else None  # type: ignore[attr-defined]
    if isinstance(target, Overload):
        return _Checked(target, target) if _check_of(target) is not None else None
    return BOUNDED.get(target)


def _wraps_checked(prim: Prim) -> bool:
    """Whether a primitive applies an operator, on its own operands, that trusts them."""
    op = getattr(prim.run, "op", None)
    return isinstance(prim.run, InGradMode) or (isinstance(op, Overload) and _check_of(op) is not None)


def refuse_operands(op: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the operands of a call, as `checked` does it, without the call. Raises: RefusedOperands."""
    _Checked(op, op).refuse(args, kwargs)


def _check_of(op: Overload) -> Check | None:
    schema = schema_of(op)
    if schema.namespace == "dovetail":
        return _CHECKS.get(f"dovetail.{schema.name}")
    return _CHECKS.get(schema.name.rstrip("_")) if schema.namespace == "aten" else None


class _Checked:
    def __init__(self, target: Callable[..., object], op: Overload) -> None:
        self._target = target
        self._op = op
        self._names = [argument.name for argument in schema_of(op).arguments]
        self._defaults = {a.name: a.default for a in schema_of(op).arguments if a.has_default}
        self._check = _check_of(op)
        self.__name__ = schema_of(op).name

    def refuse(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises: RefusedOperands for operands that a kernel would trust."""
        if self._check is None:
            return
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        try:
            self._check(given)
        except (Refused, RuntimeError, IndexError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise RefusedOperands(operator=str(self._op), reason=str(error)) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.refuse(args, kwargs)
        return self._target(*args, **kwargs)
