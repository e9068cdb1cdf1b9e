"""Split operators on lists of tensors, and run the parts for one tensor together, where that needs less memory.

    a2, b2 = _foreach_add([a, b], 1)   ->   a2 = add(a, 1); b2 = add(b, 1)

An operator on lists makes all of its results at once, so that everything a step of an optimizer needs for one parameter
is alive for all of them. On the CPU torch runs such an operator one tensor after the other, with the operator for a
single tensor: its results are the same, bit for bit. On other devices lists stay, because they have fused kernels.

The single operator is found by schema: `_foreach_X` with every `Tensor[]` and `Scalar[]` read as one tensor or number.
A fused step (`_fused_adamw_`), which writes its lists, is the same operator on lists of one.
The program is kept as it was unless the peak, once it works in place, is lower. Cost: re-inplacing, twice;
nothing for programs without lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.prims import FunctionalForm
from dovetail.passes.inplace import PlanMemory
from dovetail.passes.sink import alap_schedule
from dovetail.torch_compat.dispatch import Argument, Overload, overloads, schema_of

_PREFIX = "_foreach_"
_FUSED = "_fused_"


@dataclass(frozen=True, slots=True)
class ExpandForeachReport:
    """expanded: how many list operators were expanded; none where that would not lower the peak."""

    expanded: int

    def __str__(self) -> str:
        return f"split {self.expanded} list operators"


@dataclass(frozen=True, slots=True)
class _Single:
    """The operator for one tensor. keywords: arguments that it takes by name. names: of its arguments, parallel to the
    list operator's own, whose names have their places.
    """

    target: Overload
    names: tuple[str, ...]
    keywords: frozenset[str]
    places: dict[str, int]


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
        singles = _expanded(node) or _one_index_each(node)
        count += singles is not None
        nodes += [node] if singles is None else singles
    return program.replace_nodes(tuple(nodes)), count


def _expanded(node: Node) -> list[Node] | None:
    single = _single(node.target) if isinstance(node.target, Overload) else None
    if single is None or not _is_on_cpu(node) or any(name not in single.places for name, _ in node.kwargs):
        return None
    count = len(node.outputs)
    lists = [operand for operand in (*node.args, *dict(node.kwargs).values()) if isinstance(operand, list | tuple)]
    if not count or any(len(items) != count for items in lists) or None in node.outputs:
        return None
    return [_one(node, single, index) for index in range(count)]


def _is_on_cpu(node: Node) -> bool:
    return all(value.tensor.device.type == "cpu" for value in node.operands() if value.is_tensor)


def _one(node: Node, single: _Single, index: int) -> Node:
    given = [*zip(single.names, node.args, strict=False)]
    given += [(single.names[single.places[name]], operand) for name, operand in node.kwargs]
    named = [(name, operand[index] if isinstance(operand, list | tuple) else operand) for name, operand in given]
    args = tuple(operand for name, operand in named if name not in single.keywords)
    kwargs = tuple((name, operand) for name, operand in named if name in single.keywords)
    return replace(node, target=single.target, args=args, kwargs=kwargs, outputs=(node.outputs[index],), unpack=False)


def _one_index_each(node: Node) -> list[Node] | None:
    """A fused step of an optimizer, one parameter at a time; each of its lists is empty or as long as the others."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if not isinstance(run, FunctionalForm) or not _is_on_cpu(node):
        return None
    schema = schema_of(run.op)
    if schema.namespace != "aten" or not schema.name.startswith((_PREFIX, _FUSED)) or schema.returns:
        return None
    if any(isinstance(operand, list | tuple) for _, operand in node.kwargs) or max(run.writes) >= len(node.args):
        return None
    lists = [operand for operand in node.args if isinstance(operand, list | tuple)]
    count = max(map(len, lists), default=0)
    written = [node.args[place] for place in run.writes]
    if count < 2 or any(len(items) not in (0, count) for items in lists):
        return None
    if not all(isinstance(item, Value) for items in lists for item in items):
        return None
    if not all(isinstance(items, list | tuple) for items in written):
        return None
    starts = range(0, len(node.outputs), count)
    if len(node.outputs) != count * sum(bool(items) for items in written):
        return None
    return [
        replace(
            node,
            args=tuple([list(a[i : i + 1]) if isinstance(a, list | tuple) else a for a in node.args]),
            outputs=tuple([node.outputs[start + i] for start in starts]),
        )
        for i in range(count)
    ]


@cache
def _single(op: Overload) -> _Single | None:
    schema = schema_of(op)
    if schema.namespace != "aten" or not schema.name.startswith(_PREFIX) or schema.is_mutable:
        return None
    wanted = [_of_one(a.type) for a in schema.arguments]
    for candidate in overloads("aten", schema.name.removeprefix(_PREFIX)):
        arguments = schema_of(candidate).arguments
        returned = [type_ for type_, _, _ in schema_of(candidate).returns]
        if schema_of(candidate).is_mutable or returned != ["Tensor"] or _reorders(wanted, arguments):
            continue
        return _Single(
            candidate,
            tuple(a.name for a in arguments),
            frozenset(a.name for a in arguments if a.kwarg_only),
            {a.name: place for place, a in enumerate(schema.arguments)},
        )
    return None


def _reorders(wanted: Sequence[str], arguments: Sequence[Argument]) -> bool:
    """Whether the arguments are not the wanted ones, with defaults after them."""
    has_more = not all(argument.has_default for argument in arguments[len(wanted) :])
    return [argument.type for argument in arguments[: len(wanted)]] != list(wanted) or has_more


def _of_one(type_: str) -> str:
    return type_.removeprefix("List[").removesuffix("]") if type_.startswith("List[") else type_
