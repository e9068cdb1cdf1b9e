"""What operators do to the rows of a matrix: which of them treat each row by itself, and which add rows up.

The rows of a batch are cut into blocks, and an operator that treats each row by itself runs on one block at a time.
What adds rows up gives a sum of the sums of blocks, which differs by rounding. An operator without a rule here is not
cut.

A tensor of rows has them in its leading dimensions, `[batch, time, ...]` for rows that are places in sequences; in a
block these are one dimension. A matrix that was transposed has them second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TypeAlias

import torch

from dovetail.ir.program import Node, Operand, Target, TensorMeta, Value
from dovetail.ops.arguments import arguments_of, with_arguments
from dovetail.ops.facts import facts_of, is_copy
from dovetail.ops.layouts import is_reshaping_view
from dovetail.torch_compat.dispatch import Overload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a tensor has rows: in its `lead` first dimensions, `each` of them for every unit of the cut.

    is_turned: the tensor is a matrix whose second dimension they are.
    """

    lead: int
    each: int
    is_turned: bool = False

    def shape_of(self, shape: Sequence[int], units: int) -> list[int]:
        """The shape of a block of so many units."""
        return [shape[0], units * self.each] if self.is_turned else [units * self.each, *shape[self.lead :]]


@dataclass(frozen=True, slots=True)
class Ahead:
    """A sum over all rows that is known without any block: of operands `sources`, made by calls of operators."""

    sources: tuple[Value, ...]
    make: Callable[[Callable[..., Value]], Value]


@dataclass(frozen=True, slots=True)
class RowStep:
    """How a node runs on blocks.

    takes: for each tensor operand the rows that it is cut by; None where each block takes it whole. gives: for each
    result its rows; None where the results of blocks are added up. block: the node as it runs on blocks of so many
    units, over the operands of the program. divisor: what the first sum is divided by; the second sum, if it is
    "second". ahead: by result, how else its sum is known. adds: the operator that adds its only result to the sum of
    earlier blocks, which is its first operand then.
    """

    takes: Mapping[Value, Rows | None]
    gives: tuple[Rows | None, ...]
    block: Callable[[int], Node]
    divisor: int | str | None = None
    ahead: Mapping[int, Ahead] | None = None
    adds: Target | None = None


Known: TypeAlias = Mapping[Value, Rows]


def row_step(node: Node, known: Known, units: int) -> RowStep | None:
    """How a node runs on blocks of rows; None where it is not known to. known: the rows of values that are cut."""
    if not isinstance(node.target, Overload) or not facts_of(node.target).is_pure or not _sizes_are_known(node):
        return None
    if is_reshaping_view(node):
        return _reshaped(node, known, units)
    schema = schema_of(node.target)
    if schema.namespace != "aten":
        return None
    if facts_of(node.target).pointwise or is_copy(node.target):
        return _elementwise(node, known)
    rule = _RULES.get(schema.name)
    return rule(node, known, units) if rule is not None else None


@cache
def reads_layout_only(target: Target) -> bool:
    """Whether the operator only looks at the shape and kind of its first operand, not at its contents."""
    return isinstance(target, Overload) and (schema_of(target).namespace, schema_of(target).name) in _LIKE


_LIKE = frozenset({("aten", n) for n in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")})
_FILLED: dict[str, int | None] = {  # with what; None: with what the argument says
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("full", "full_like", "new_full")),
}


def filled_step(node: Node, rows: Rows) -> RowStep | None:
    """How each block makes rows of a tensor that is filled with one number; None for what is something else."""
    name = schema_of(node.target).name if isinstance(node.target, Overload) else ""
    if name not in _FILLED or rows.is_turned or not _sizes_are_known(node) or not facts_of(node.target).is_pure:
        return None
    result, number = _result(node), _FILLED[name]
    shape = _numbers(result.shape)
    fill = arguments_of(node)["fill_value"] if number is None else number
    kind = (("dtype", result.dtype), ("device", result.device))

    def block(count: int) -> Node:
        size = rows.shape_of(shape, count)
        return Node(aten.full.default, (size, fill), kind, node.outputs, node.unpack, node.phase, node.origin)

    fills = not isinstance(fill, Value) and result.is_contiguous()
    return RowStep(dict.fromkeys(_tensors(node)), (rows,), block) if fills else None


def dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """In which dtype sums of blocks are added up: kernels add narrow numbers up in a wider one, and round once."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def rows_in(shape: Sequence[object], units: int, lead: int | None = None) -> Rows | None:
    """The rows of a tensor of this shape: in so many leading dimensions, or in as few as hold the units evenly."""
    for count in range(1, len(shape) + 1) if lead is None else (lead,):
        rows = prod(_numbers(shape[:count]))
        if 0 < count <= len(shape) and rows and rows % units == 0:
            return Rows(count, rows // units)
    return None


def _numbers(sizes: Sequence[object]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]


def _sizes_are_known(node: Node) -> bool:
    metas = [value.tensor for value in (*node.operands(), *node.results()) if value.is_tensor]
    return all(isinstance(size, int) for meta in metas for size in meta.shape)


def _tensors(node: Node) -> list[Value]:
    return list(dict.fromkeys(value for value in node.operands() if value.is_tensor))


def _result(node: Node) -> TensorMeta:
    return node.results()[0].tensor


# --- elementwise ----------------------------------------------------------------------------------------------------


def _elementwise(node: Node, known: Known) -> RowStep | None:
    """Operands of the result's rank are cut as it is; others hold no rows, or the result would have others."""
    shape = _numbers(_result(node).shape)
    leads = {(known[value].lead, known[value].each) for value in _tensors(node) if value in known}
    if len(leads) != 1 or len(node.outputs) != 1:
        return None
    rows = Rows(*leads.pop())
    takes: dict[Value, Rows | None] = {}
    for value in _tensors(node):
        own = _numbers(value.tensor.shape)
        if value in known:
            if known[value] != rows or len(own) != len(shape) or own[: rows.lead] != shape[: rows.lead]:
                return None
            takes[value] = rows
        elif len(own) == len(shape) and own[: rows.lead] == shape[: rows.lead]:
            takes[value] = rows
        elif len(own) <= len(shape) - rows.lead or (rows.lead == 1 and len(own) == len(shape) and own[0] == 1):
            takes[value] = None
        else:
            return None
    return RowStep(takes, (rows,), lambda units: node)


# --- other shapes ---------------------------------------------------------------------------------------------------


def _reshaped(node: Node, known: Known, units: int) -> RowStep | None:
    """A view in another shape, of rows that lie one after the other."""
    source, result = node.operands()[0], _result(node)
    rows = rows_in(result.shape, units)
    if source not in known or known[source].is_turned or rows is None:
        return None
    shape = _numbers(result.shape)
    return RowStep(
        {source: known[source]},
        (rows,),
        lambda count: with_arguments(node, {"size": rows.shape_of(shape, count)}),
    )


def _turned(node: Node, known: Known, units: int) -> RowStep | None:
    """The transpose of a matrix."""
    source = node.operands()[0]
    dims = {"t": (1, 0), "transpose": node.args[1:], "permute": node.args[1] if len(node.args) > 1 else ()}
    order = dims[schema_of(node.target).name] if isinstance(node.target, Overload) else ()
    turns = [dim % 2 for dim in order if isinstance(dim, int)] if isinstance(order, list | tuple) else []
    is_turn = sorted(turns) == [0, 1] and (turns == [1, 0] or node.target is aten.transpose.int)
    if source not in known or len(source.tensor.shape) != 2 or known[source].lead != 1 or not is_turn:
        return None
    rows = known[source]
    return RowStep({source: rows}, (Rows(1, rows.each, not rows.is_turned),), lambda count: node)


# --- along a dimension ----------------------------------------------------------------------------------------------


def _along(node: Node, known: Known, units: int) -> RowStep | None:
    """An operator along a dimension behind the rows; what it reads besides is cut as its first operand is."""
    named = arguments_of(node)
    first = node.operands()[0]
    rows = next((known[value] for value in _tensors(node) if value in known), None)
    dims = _dims(named.get("dim"), len(first.tensor.shape) + _more_dims(node))
    if rows is None or rows.is_turned or dims is None or any(dim < rows.lead for dim in dims):
        return None
    lead = _numbers(first.tensor.shape[: rows.lead])
    if any(_numbers(value.tensor.shape[: rows.lead]) != lead for value in _tensors(node)):
        return None
    if any(_numbers(value.tensor.shape[: rows.lead]) != lead for value in node.results()):
        return None
    if any(known.get(value, rows) != rows for value in _tensors(node)):
        return None
    moved = [dim - rows.lead + 1 for dim in dims]
    changes: dict[str, Operand] = {"dim": moved if isinstance(named["dim"], list | tuple) else moved[0]}

    def block(count: int) -> Node:
        sizes = named.get("input_sizes")
        whole = {"input_sizes": rows.shape_of(_numbers(sizes), count)} if isinstance(sizes, list | tuple) else {}
        return with_arguments(node, {**changes, **whole})

    return RowStep(dict.fromkeys(_tensors(node), rows), (rows,) * len(node.outputs), block)


def _more_dims(node: Node) -> int:
    return int(isinstance(node.target, Overload) and schema_of(node.target).name in ("unsqueeze", "select_backward"))


def _dims(given: object, rank: int) -> list[int] | None:
    """The dimensions that an argument names, counted from the first."""
    dims = [given] if isinstance(given, int) else given
    if not isinstance(dims, list | tuple) or not dims:
        return None
    return [dim % rank for dim in dims if isinstance(dim, int)] if rank else None


# --- sums -----------------------------------------------------------------------------------------------------------


def _summed(node: Node, known: Known, units: int) -> RowStep | None:
    """A sum or a mean: over the rows, or behind them."""
    named = arguments_of(node)
    source = node.operands()[0]
    rows = known.get(source)
    if rows is None or rows.is_turned or not isinstance(node.target, Overload):
        return None
    rank = len(source.tensor.shape)
    dims = _dims(named.get("dim"), rank) or list(range(rank))
    if min(dims) >= rows.lead:
        return _along(node, known, units)
    if not set(range(rows.lead)).issubset(dims):
        return None
    is_mean = schema_of(node.target).name == "mean"
    shape = _numbers(source.tensor.shape)
    args: tuple[Operand, ...] = (
        source,
        sorted({max(dim - rows.lead + 1, 0) for dim in dims}),
        named.get("keepdim", False),
    )
    total = Node(
        aten.sum.dim_IntList, args, (("dtype", named.get("dtype")),), node.outputs, node.unpack, node.phase, node.origin
    )
    divisor = prod(shape[dim] for dim in dims) if is_mean else None
    return RowStep({source: rows}, (None,), lambda count: total, divisor)


def _product(node: Node, known: Known, units: int) -> RowStep | None:
    """A product of matrices: of rows by a matrix, or a sum over rows."""
    named = arguments_of(node)
    has_bias = "mat1" in named
    left, right = named["mat1" if has_bias else "self"], named["mat2"]
    if not isinstance(left, Value) or not isinstance(right, Value) or left is right:
        return None
    turned = known.get(left) or (Rows(1, known[right].each, True) if right in known else None)
    if turned is not None and turned.is_turned and not has_bias:
        rows = Rows(1, turned.each)
        fits = known.get(right, rows) == rows and right.tensor.shape[0] == units * rows.each
        takes: dict[Value, Rows | None] = {left: turned, right: rows}
        return RowStep(takes, (None,), lambda count: node, adds=aten.addmm.default) if fits else None
    plain = known.get(left)
    if plain is None or plain.is_turned or plain.lead != 1 or right in known:
        return None
    takes = {left: plain, right: None}
    bias = named["self"] if has_bias else None
    if isinstance(bias, Value):
        if bias in takes or len(bias.tensor.shape) != 1:
            return None
        takes[bias] = None
    return RowStep(takes, (plain,), lambda count: node)


# --- losses ---------------------------------------------------------------------------------------------------------

_MEAN, _SUM = 1, 2  # of torch's enum of reductions


def _nll_loss(node: Node, known: Known, units: int) -> RowStep | None:
    """The negative log likelihood of each row's class. A mean is that of the classes' weights."""
    named = arguments_of(node)
    scores, target, weight = named["self"], named["target"], named["weight"]
    rows = known.get(scores) if isinstance(scores, Value) else None
    if rows is None or rows.is_turned or not isinstance(scores, Value) or not isinstance(target, Value):
        return None
    if len(scores.tensor.shape) != 2 or len(target.tensor.shape) != 1 or known.get(target, rows) != rows:
        return None
    takes: dict[Value, Rows | None] = {scores: rows, target: rows}
    if isinstance(weight, Value):
        takes[weight] = None
    if scores.tensor.dtype is torch.float16 and named["reduction"] in (_MEAN, _SUM):
        return None  # the sum of a block may be out of range where the mean is not
    if named["reduction"] not in (_MEAN, _SUM):
        unused = Ahead((), lambda call: call(aten.full.default, ([], 0), (("dtype", scores.tensor.dtype),)))
        return RowStep(takes, (rows, None), lambda count: node, ahead={1: unused})
    of_block = with_arguments(node, {"reduction": _SUM})
    ahead = {} if target in known else {1: _total_weight(scores, target, weight, named["ignore_index"])}
    divisor = "second" if named["reduction"] == _MEAN else None
    return RowStep(takes, (None, None), lambda count: of_block, divisor, ahead)


def _total_weight(scores: Value, target: Value, weight: Operand, ignored: Operand) -> Ahead:
    """The weights of the classes of all rows, added up; those of rows that count, as many as there are."""
    dtype = scores.tensor.dtype
    last = scores.tensor.shape[1]
    assert isinstance(last, int), "sizes are known"

    def make(call: Callable[..., Value]) -> Value:
        counts = call(aten.ne.Scalar, (target, ignored))
        if isinstance(weight, Value):
            place = call(aten.clamp.default, (target, 0, last - 1))  # what is out of range fails in its block
            counts = call(aten.mul.Tensor, (call(aten.index_select.default, (weight, 0, place)), counts))
        return call(aten.sum.default, (counts,), (("dtype", dtype),))

    return Ahead((target, weight) if isinstance(weight, Value) else (target,), make)


def _nll_loss_backward(node: Node, known: Known, units: int) -> RowStep | None:
    """The gradient of it, for the mean with the weights of all rows."""
    named = arguments_of(node)
    scores, target, gradient = named["self"], named["target"], named["grad_output"]
    rows = known.get(scores) if isinstance(scores, Value) else None
    if rows is None or rows.is_turned or not isinstance(scores, Value) or len(scores.tensor.shape) != 2:
        return None
    if not isinstance(target, Value) or not isinstance(gradient, Value):
        return None
    takes: dict[Value, Rows | None] = dict.fromkeys(_tensors(node))
    takes.update({scores: rows, target: rows})
    if gradient.tensor.shape:
        takes[gradient] = rows
    is_known = all(known.get(value, rows) == rows or takes[value] is None for value in takes)
    return RowStep(takes, (rows,), lambda count: node) if is_known else None


# Each treats what lies behind the rows as a whole, one row after the other.
_ALONG = (
    *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "logsumexp"),
    *("amax", "amin", "argmax", "argmin", "gather", "scatter", "scatter_add"),
    *("slice", "slice_backward", "select", "select_backward", "unsqueeze", "squeeze"),
)
_RULES: dict[str, Callable[[Node, Known, int], RowStep | None]] = {
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(("sum", "mean"), _summed),
    **dict.fromkeys(("mm", "addmm"), _product),
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
}
