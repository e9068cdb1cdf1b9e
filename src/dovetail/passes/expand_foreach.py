"""Split operators on lists of tensors, and run the parts for one tensor together, where that needs less memory.

    a2, b2 = _foreach_add([a, b], 1)   ->   a2 = add(a, 1); b2 = add(b, 1)

An operator on lists makes all of its results at once, so that everything a step of an optimizer needs for one parameter
is alive for all of them. On the CPU torch runs such an operator one tensor after the other, with the operator for a
single tensor (`ops.list_operators`): its results are the same, bit for bit. A fused step (`_fused_adamw_`), which
writes its lists, is the same operator on lists of one.

Other devices have kernels for lists, which cost little more than one for a single tensor. There a list becomes a few
shorter ones of about equal bytes. Each element is computed by itself, so its bits do not depend on the list; but the
kernel must take the whole list, for then it takes the parts as well: tensors of one floating dtype on one device, alike
in size and strides, without gaps (`can_use_fast_route` in torch's ATen/native/ForeachUtils.h). Reductions
(`_foreach_norm`) stay whole there.

The program is kept as it was unless the peak, once it works in place, is lower. Cost: re-inplacing, twice;
nothing for programs without lists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dovetail.analysis.liveness import bytes_of
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, Value
from dovetail.ir.sizes import is_dense
from dovetail.ops.list_operators import PREFIX, Single, single_of
from dovetail.ops.prims import FunctionalForm
from dovetail.passes.inplace import PlanMemory
from dovetail.passes.sink import alap_schedule
from dovetail.torch_compat.dispatch import Overload, schema_of

_FUSED = "_fused_"
_SHORT_LISTS = 8
"""How many, on devices with kernels for lists: memory falls to an eighth, and a step has some hundred calls more."""


@dataclass(frozen=True, slots=True)
class ExpandForeachReport:
    """expanded: how many list operators were expanded; none where that would not lower the peak."""

    expanded: int

    def __str__(self) -> str:
        return f"split {self.expanded} list operators"


def expand_foreach(program: Program, memory: PlanMemory | None = None) -> tuple[Program, ExpandForeachReport]:
    """The program with one node for each tensor of a list, in demand-driven order; itself where that saves nothing."""
    apart, count = expand_lists(program)
    if not count:
        return program, ExpandForeachReport(0)
    later, plans = alap_schedule(apart), memory or PlanMemory()
    is_better = plans.peak_bytes(later) < plans.peak_bytes(program)
    return (later, ExpandForeachReport(count)) if is_better else (program, ExpandForeachReport(0))


def expand_lists(program: Program) -> tuple[Program, int]:
    """The program with one node for each tensor of a list, where the list stood; and how many lists that were."""
    nodes: list[Node] = []
    count = 0
    for node in program.nodes:
        parts = _parts(node, node.target) if isinstance(node.target, Overload) else _in_place_parts(node)
        count += parts is not None
        nodes += [node] if parts is None else parts
    return program.replace_nodes(tuple(nodes)), count


def _parts(node: Node, target: Overload) -> list[Node] | None:
    lists = [operand for operand in (*node.args, *dict(node.kwargs).values()) if isinstance(operand, list | tuple)]
    results = node.results()
    if not results or any(len(items) != len(node.outputs) for items in lists) or None in node.outputs:
        return None
    if not _is_on_cpu(node):
        return _short_lists(node, _bounds(results)) if _is_of_elements(node, target, lists) else None
    single = single_of(target)
    if single is None or any(name not in single.places for name, _ in node.kwargs):
        return None
    return [_one(node, single, index) for index in range(len(results))]


def _is_on_cpu(node: Node) -> bool:
    return all(value.tensor.device.type == "cpu" for value in node.operands() if value.is_tensor)


def _one(node: Node, single: Single, index: int) -> Node:
    given = [*zip(single.names, node.args, strict=False)]
    given += [(single.names[single.places[name]], operand) for name, operand in node.kwargs]
    named = [(name, operand[index] if isinstance(operand, list | tuple) else operand) for name, operand in given]
    args = tuple(operand for name, operand in named if name not in single.keywords)
    kwargs = tuple((name, operand) for name, operand in named if name in single.keywords)
    return replace(node, target=single.target, args=args, kwargs=kwargs, outputs=(node.outputs[index],), unpack=False)


def _is_of_elements(node: Node, target: Overload, lists: Sequence[Sequence[Operand]]) -> bool:
    """Whether an operator on lists computes each element by itself, in the kernel for lists."""
    schema = schema_of(target)
    if schema.namespace != "aten" or not schema.name.startswith(PREFIX) or schema.is_mutable:
        return False
    values = [[item for item in items if isinstance(item, Value) and item.is_tensor] for items in lists]
    tensors = [found for found, items in zip(values, lists, strict=True) if len(found) == len(items)]
    listed = {value for found in tensors for value in found}
    alone = [value for value in node.operands() if value not in listed and value.is_tensor]
    if not tensors or any(value.tensor.numel() != 1 for value in alone):
        return False
    return all(map(_is_alike, zip(*tensors, node.results(), strict=True))) and _is_uniform(listed)


def _is_alike(values: Sequence[Value]) -> bool:
    first = values[0].tensor
    return is_dense(first.shape, first.stride) and all(v.is_tensor and v.tensor.lies_like(first) for v in values)


def _is_uniform(values: Collection[Value]) -> bool:
    kinds = {(value.tensor.dtype, value.tensor.device) for value in values}
    return len(kinds) == 1 and all(dtype.is_floating_point for dtype, _ in kinds)


def _short_lists(node: Node, bounds: Sequence[tuple[int, int]]) -> list[Node] | None:
    if len(bounds) == 1:
        return None
    return [
        replace(
            node,
            args=tuple([_cut(operand, start, end) for operand in node.args]),
            kwargs=tuple([(name, _cut(operand, start, end)) for name, operand in node.kwargs]),
            outputs=node.outputs[start:end],
        )
        for start, end in bounds
    ]


def _cut(operand: Operand, start: int, end: int) -> Operand:
    return list(operand[start:end]) if isinstance(operand, list | tuple) else operand


def _bounds(values: Sequence[Value]) -> list[tuple[int, int]]:
    """Where parts of a list begin and end; the same for all lists of tensors of these sizes, in this order."""
    sizes = [bytes_of(value.tensor, {}) for value in values]
    wanted = sum(sizes) / _SHORT_LISTS
    ends: list[int] = []
    held = 0
    for end, size in enumerate(sizes, 1):
        held += size
        if held >= wanted or end == len(sizes):
            ends.append(end)
            held = 0
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _in_place_parts(node: Node) -> list[Node] | None:
    """A fused step of an optimizer on parts of its lists."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if not isinstance(run, FunctionalForm) or not _may_take_parts(node, run):
        return None
    first = next(node.args[place] for place in run.writes if node.args[place])
    assert isinstance(first, list | tuple), "what is written lies in lists"
    count, values = len(first), [value for value in first if isinstance(value, Value)]
    bounds = [(i, i + 1) for i in range(count)] if _is_on_cpu(node) else _bounds(values)
    starts = range(0, len(node.outputs), count)
    return [
        replace(
            node,
            args=tuple([_cut(operand, start, end) for operand in node.args]),
            outputs=tuple([output for at in starts for output in node.outputs[at + start : at + end]]),
        )
        for start, end in bounds
    ]


def _may_take_parts(node: Node, form: FunctionalForm) -> bool:
    """Whether each list is empty or as long as the others, and there is a result for each tensor that is written."""
    schema = schema_of(form.op)
    families = (PREFIX, _FUSED) if _is_on_cpu(node) else _FUSED
    if schema.namespace != "aten" or not schema.name.startswith(families) or schema.returns:
        return False
    if any(isinstance(operand, list | tuple) for _, operand in node.kwargs) or max(form.writes) >= len(node.args):
        return False
    lists = [operand for operand in node.args if isinstance(operand, list | tuple)]
    count = max(map(len, lists), default=0)
    written = [node.args[place] for place in form.writes]
    return (
        count > 1
        and all(len(items) in (0, count) for items in lists)
        and all(isinstance(item, Value) for items in lists for item in items)
        and all(isinstance(items, list | tuple) for items in written)
        and len(node.outputs) == count * sum(bool(items) for items in written)
    )
