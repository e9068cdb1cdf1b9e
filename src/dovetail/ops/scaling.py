"""How a call of an operator can be made smaller and stay one that its kernel takes.

Some kernels trust that the sizes of their operands belong together: with others they write where nothing is. So only
operators are scaled that are known here. In most, sizes are related by being equal, or are checked; in the rest, some
dimensions can be scaled by themselves: those of the batch, and heads of attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.ir.program import Node
from dovetail.ops.facts import facts_of, is_copy
from dovetail.torch_compat.dispatch import Overload, schema_of

_EQUAL_SIZES = {
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_softmax", "_safe_softmax", "_log_softmax"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "logsumexp", "sum", "mean", "var", "std"),
    *("var_mean", "amax", "amin", "max", "min", "prod", "cumsum", "cumprod", "argmax", "argmin", "any", "all"),
    *("linalg_vector_norm", "sort", "topk", "flip", "roll", "cat", "stack", "embedding", "embedding_dense_backward"),
    *("nll_loss_forward", "nll_loss_backward", "mse_loss", "mse_loss_backward", "native_layer_norm"),
    *("native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "native_dropout"),
    *("native_dropout_backward", "tril", "triu", "index_select", "gather", "scatter", "scatter_add", "index"),
    *("index_put", "_unsafe_view", "slice_backward", "select_backward", "slice_scatter", "select_scatter"),
    *("constant_pad_nd", "repeat", "zeros", "ones", "full", "empty", "arange", "zeros_like", "ones_like"),
    *("full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "empty_strided"),
    *("new_empty_strided", "_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"),
    *("binary_cross_entropy", "binary_cross_entropy_backward", "huber_loss", "huber_loss_backward"),
    *("gelu", "gelu_backward", "silu", "silu_backward", "tanh_backward", "sigmoid_backward", "threshold_backward"),
    *("elu", "elu_backward", "leaky_relu", "leaky_relu_backward", "hardtanh", "hardtanh_backward", "hardswish"),
    *("hardswish_backward", "softplus", "softplus_backward", "mish", "mish_backward", "rsqrt", "glu", "glu_backward"),
    *("smooth_l1_loss", "smooth_l1_loss_backward", "rand_like", "randn_like", "bernoulli"),
}

Axis = Mapping[str, int]
"""Names of the operands that have a dimension, and which one it is; `NUMBER`: the operand is that size."""

NUMBER = -1
_BATCH = dict.fromkeys(("self", "input", "grad_output", "grad_out", "indices"), 0)
_ATTENTION = ("query", "key", "value", "grad_out", "out", "logsumexp")

_AXES: dict[str, tuple[Axis, ...]] = {
    **dict.fromkeys(
        (
            *("convolution", "convolution_backward", "native_batch_norm", "_native_batch_norm_legit"),
            *("native_batch_norm_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
            *("avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
            *("batch_norm_backward", "_batch_norm_with_update"),
        ),
        (_BATCH,),
    ),
    "native_group_norm": ({**_BATCH, "N": NUMBER},),
    "native_group_norm_backward": ({**_BATCH, "mean": 0, "rstd": 0, "N": NUMBER},),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        (dict.fromkeys(_ATTENTION, 0), dict.fromkeys(_ATTENTION, 1)),
    ),
}


def has_equal_sizes(node: Node) -> bool:
    """Whether sizes of an operator's operands are related by being equal only, or its kernel checks them."""
    name = _name(node)
    return bool(name) and (
        name in _EQUAL_SIZES or name.startswith("_foreach_") or facts_of(node.target).pointwise or is_copy(node.target)
    )


def axes_of(node: Node) -> Sequence[Axis]:
    """Dimensions of an operator's operands that can be scaled by themselves."""
    return _AXES.get(_name(node), ())


def chooses_by_size(node: Node) -> bool:
    """Whether a library chooses among kernels by sizes: small runs may take what larger ones do not."""
    return _name(node).startswith("convolution")


def operand_names(node: Node) -> list[str]:
    """What the schema of an operator calls its operands."""
    return [argument.name for argument in schema_of(node.target).arguments] if isinstance(node.target, Overload) else []


def _name(node: Node) -> str:
    return schema_of(node.target).name.removesuffix("_") if isinstance(node.target, Overload) else ""
