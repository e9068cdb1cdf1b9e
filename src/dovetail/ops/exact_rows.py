"""Operators of which a block of rows has the bits that all rows together have.

Sums over rows and products of matrices have other bits on blocks, as they are rounded in another order. Arithmetic
that is rounded once for each element cannot; moving numbers cannot either; and kernels along the last dimension are
tried (`torch_compat.rows_alone`). A function like `exp` stays out: the last elements of a call, which do not fill a
vector, may take another formula.
"""

from __future__ import annotations

from dovetail.ir.program import Node, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.layouts import is_reshaping_view
from dovetail.ops.rows import RowStep
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.rows_alone import treats_rows_alone

# Each element is one operation of IEEE 754, rounded once, a comparison, or a copy.
_ROUNDED_ONCE = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "abs", "where", "masked_fill", "threshold_backward", "relu"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"),
        *("clone", "_to_copy", "zeros", "ones", "full"),
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    }
)
_MOVING = frozenset({"slice", "select", "unsqueeze", "squeeze", "slice_backward", "select_backward"})
_INDEXING = frozenset({"gather", "scatter", "scatter_add"})


def keeps_bits(node: Node, step: RowStep) -> bool:
    """Whether blocks of rows, as the step cuts them, get the bits that the node gives these rows."""
    if not isinstance(node.target, Overload) or None in step.gives or step.divisor is not None or step.ahead:
        return False
    schema, named = schema_of(node.target), arguments_of(node)
    metas = [value.tensor for value in (*node.operands(), *node.results()) if value.is_tensor]
    if schema.namespace != "aten" or any(m.dtype.is_complex or m.device.type != "cpu" for m in metas):
        return False
    if is_reshaping_view(node) or schema.name in _MOVING:
        return True
    if schema.name in _ROUNDED_ONCE:
        return named.get("alpha", 1) == 1 and not named.get("rounding_mode")
    if schema.name in _INDEXING:
        return not named.get("reduce") and not named.get("sparse_grad")
    return _is_along_last(node) and treats_rows_alone(schema.name, metas[0].dtype)


def _is_along_last(node: Node) -> bool:
    """Whether what a node reads and makes of rows are contiguous matrices of one dtype, along whose rows it runs."""
    wide = [v.tensor for v in (*node.operands(), *node.results()) if v.is_tensor and len(v.tensor.shape) > 1]
    dim = arguments_of(node).get("dim", -1)
    if not wide or isinstance(dim, Value) or dim not in (-1, len(wide[0].shape) - 1):
        return False
    alike = all(meta.shape == wide[0].shape and meta.dtype == wide[0].dtype for meta in wide)
    return alike and all(meta.is_contiguous() for meta in wide)
