"""Operators that may be given zeros where they take tensors of whole numbers.

Most kernels trust such tensors: positions in another tensor, pivots, lengths, memory of a library of which nobody else
knows the layout. Zeros are not safe for all of them: a wrong pivot or a wrong workspace is read and written without a
check. Those below take zeros as numbers, or as positions in a tensor that has a first element.
"""

from __future__ import annotations

from dovetail.ir.program import Node
from dovetail.ops.facts import facts_of, is_copy
from dovetail.torch_compat.dispatch import Overload, schema_of

_ZEROS_ARE_POSITIONS = {
    *("embedding", "embedding_dense_backward", "embedding_renorm", "index", "_unsafe_index"),
    *("index_put", "_unsafe_index_put", "index_select", "index_add", "index_copy"),
    *("index_fill", "gather", "scatter", "scatter_add", "scatter_reduce"),
    *("take", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
    *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
}
_ZEROS_ARE_NUMBERS = {
    *("sum", "mean", "prod", "cumsum", "cumprod"),
    *("amax", "amin", "max", "min", "argmax"),
    *("argmin", "sort", "argsort", "topk", "any"),
    *("all", "cat", "stack", "flip", "roll"),
    *("repeat", "constant_pad_nd", "masked_fill", "tril", "triu"),
    *("select_backward", "slice_backward", "slice_scatter", "select_scatter", "nonzero"),
    *("masked_select", "unique_consecutive", "_unique2", "bincount"),
}


def takes_zeros(node: Node) -> bool:
    """Whether the operator of a node is known to be fine with zeros for every tensor of whole numbers."""
    if not isinstance(node.target, Overload):
        return False
    name = schema_of(node.target).name.removesuffix("_")
    is_known = name in _ZEROS_ARE_POSITIONS or name in _ZEROS_ARE_NUMBERS
    return is_known or facts_of(node.target).pointwise or is_copy(node.target)
