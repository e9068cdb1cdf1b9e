"""Operators that may be given zeros where they take tensors of whole numbers.

Most kernels trust such tensors: positions in another tensor, pivots, lengths, memory of a library of which nobody else
knows the layout. Zeros are not safe for all of them: a wrong pivot or a wrong workspace is read and written without a
check. Those below take zeros as numbers, or as positions in a tensor that has a first element. Some need other numbers
in one operand (`fill_whole_numbers`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node
from dovetail.ops.facts import facts_of, is_copy
from dovetail.ops.prims import FunctionalForm, InGradMode, OverParameters
from dovetail.torch_compat.dispatch import Overload, schema_of

_ZEROS_ARE_POSITIONS = {
    *("embedding", "embedding_dense_backward", "embedding_renorm", "index", "_unsafe_index"),
    *("index_put", "_unsafe_index_put", "index_select", "index_add", "index_copy"),
    *("index_fill", "gather", "scatter", "scatter_add", "scatter_reduce"),
    *("take", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
    *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "max_unpool2d", "max_unpool3d"),
    *("put", "index_reduce", "multi_margin_loss", "multi_margin_loss_backward"),
    *("multilabel_margin_loss_forward", "multilabel_margin_loss_backward"),
}
_ZEROS_ARE_NUMBERS = {
    *("sum", "mean", "prod", "cumsum", "cumprod"),
    *("amax", "amin", "max", "min", "argmax"),
    *("argmin", "sort", "argsort", "topk", "any"),
    *("all", "cat", "stack", "flip", "roll"),
    *("repeat", "constant_pad_nd", "masked_fill", "tril", "triu"),
    *("select_backward", "slice_backward", "slice_scatter", "select_scatter", "nonzero"),
    *("masked_select", "unique_consecutive", "_unique2", "bincount"),
    *("_amp_update_scale", "copy", "fill", "zero"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_empty", "new_zeros", "new_ones", "new_full"),
    *("mm", "bmm", "mv", "dot", "addmm", "addmv", "addr", "addbmm", "baddbmm", "trace", "linalg_cross"),
    *("count_nonzero", "aminmax", "median", "mode", "kthvalue", "cummax", "cummin"),
    *("searchsorted", "bucketize", "floor_divide"),
    *("diag_embed", "diagonal_scatter", "as_strided_scatter", "masked_scatter", "rot90"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    "_scaled_dot_product_efficient_attention_backward",  # the seed and the offset of a generator
}
# Operators over bags of positions. `offsets`: where in `indices` each begins. What else they are given may be empty.
_OF_BAGS = {
    *("_embedding_bag", "_embedding_bag_forward_only"),
    *("_embedding_bag_backward", "_embedding_bag_per_sample_weights_backward"),
}
_LU = {"linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"}
# Operators that read whole numbers without a check -> operators of which they are.
_PARTNERS = {
    "mkldnn_rnn_layer_backward": {"mkldnn_rnn_layer"},
    "linalg_lu_solve": _LU,
    "lu_unpack": _LU,
    "linalg_ldl_solve": {"linalg_ldl_factor_ex"},
    "batch_norm_backward": {"_batch_norm_with_update"},
    "adaptive_max_pool2d_backward": {"adaptive_max_pool2d"},
    "adaptive_max_pool3d_backward": {"adaptive_max_pool3d"},
    "fractional_max_pool2d_backward": {"fractional_max_pool2d"},
    "fractional_max_pool3d_backward": {"fractional_max_pool3d"},
}


def reads_of_partner(reader: Node, producer: Node) -> bool:
    """Whether whole numbers of one node are what another expects: they belong to one more of its operands."""
    if _name(producer) not in _PARTNERS.get(_name(reader), ()):
        return False
    theirs = {
        v for v in (*producer.operands(), *producer.results()) if v.is_tensor and v.tensor.dtype.is_floating_point
    }
    return any(value in theirs for value in reader.operands())


def reads_of_partners(node: Node) -> bool:
    """Whether it matters to a node which operator made the whole numbers that it reads."""
    return _name(node) in _PARTNERS


def operator_of(node: Node) -> Overload | None:
    """The operator of torch that a node runs, as it is or in a primitive that only says how; None for all else."""
    runs = node.target.run if isinstance(node.target, Prim) else node.target
    op = runs.op if isinstance(runs, InGradMode | OverParameters | FunctionalForm) else runs
    return op if isinstance(op, Overload) else None


def _name(node: Node) -> str:
    op = operator_of(node)
    return "" if op is None else schema_of(op).name


def takes_zeros(node: Node) -> bool:
    """Whether the operator of a node is known to be fine with zeros for every tensor of whole numbers."""
    op = operator_of(node)
    if op is None:
        return False
    name = schema_of(op).name.removesuffix("_")
    is_known = name in _ZEROS_ARE_POSITIONS or name in _ZEROS_ARE_NUMBERS or name in _OF_BAGS
    return is_known or facts_of(op).pointwise or is_copy(op)


def needs_other_numbers(node: Node) -> bool:
    """Whether an operator that takes zeros needs other numbers in one operand; see `fill_whole_numbers`.

    Its positions are those of elements that have fractions: other operands and results may be empty.
    """
    return _name(node) in _OF_BAGS


def fill_whole_numbers(node: Node, operands: Mapping[str, object]) -> None:
    """Put the numbers that an operator needs into operands that hold zeros. operands: by their names.

    Bags lie side by side, to the last position: a last offset that is the end of the last bag has to be there. Each
    holds something: the gradient of a maximum takes memory for those that do.
    """
    offsets, indices, sizes = (operands.get(name) for name in ("offsets", "indices", "bag_size"))
    if needs_other_numbers(node) and isinstance(offsets, torch.Tensor) and isinstance(indices, torch.Tensor):
        count = offsets.numel()
        offsets.copy_(torch.arange(count) * indices.numel() // max(count - 1, 1))
        if isinstance(sizes, torch.Tensor):
            sizes.fill_(1)
