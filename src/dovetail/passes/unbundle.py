"""Take operators on lists of tensors apart, and run what belongs together, where that needs less memory.

    a2, b2 = _foreach_add([a, b], 1)   ->   a2 = add(a, 1); b2 = add(b, 1)

An operator on lists makes all of its results at once, so that everything a step of an optimizer needs for one parameter
is alive for all of them. On the CPU torch runs such an operator one tensor after the other, by the operator that is
meant for one: its results are the same, bit by bit. On other devices lists stay, for the sake of their fused kernels.

The single operator is found by schema: `_foreach_X` with every `Tensor[]` and `Scalar[]` read as one tensor or number.
The program is kept as it was unless the peak, once it works in place, is lower. Cost: that of working in place, twice;
nothing for programs without lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from dovetail.ir.program import Node, Operand, Program
from dovetail.passes.run_late import demand_driven, peak_in_place
from dovetail.torch_compat.dispatch import Argument, Overload, overloads, schema_of

_PREFIX = "_foreach_"


@dataclass(frozen=True, slots=True)
class UnbundleReport:
    """unbundled: how many list operators were taken apart; none where that would not lower the peak."""

    unbundled: int

    def __str__(self) -> str:
        return f"took {self.unbundled} list operators apart"


@dataclass(frozen=True, slots=True)
class _Single:
    """The operator for one tensor. keywords: arguments that it takes by name; names are parallel to the list's own."""

    target: Overload
    names: tuple[str, ...]
    keywords: frozenset[str]


def unbundle(program: Program) -> tuple[Program, UnbundleReport]:
    """The program with one node for each tensor of a list, in demand-driven order; itself where that saves nothing."""
    nodes: list[Node] = []
    count = 0
    for node in program.nodes:
        singles = _taken_apart(node)
        count += singles is not None
        nodes += [node] if singles is None else singles
    if not count:
        return program, UnbundleReport(0)
    taken_apart = demand_driven(program.replace_nodes(tuple(nodes)))
    is_better = peak_in_place(taken_apart) < peak_in_place(program)
    return (taken_apart, UnbundleReport(count)) if is_better else (program, UnbundleReport(0))


def _taken_apart(node: Node) -> list[Node] | None:
    single = _single(node.target) if isinstance(node.target, Overload) else None
    values = list(node.operands())
    if single is None or node.kwargs or any(not v.is_tensor or v.tensor.device.type != "cpu" for v in values):
        return None
    count = len(node.outputs)
    lists = [operand for operand in node.args if isinstance(operand, list | tuple)]
    if not count or any(len(items) != count for items in lists) or None in node.outputs:
        return None
    return [_one(node, single, index) for index in range(count)]


def _one(node: Node, single: _Single, index: int) -> Node:
    picked: list[Operand] = [a[index] if isinstance(a, list | tuple) else a for a in node.args]
    named = list(zip(single.names, picked, strict=False))
    args = tuple(operand for name, operand in named if name not in single.keywords)
    kwargs = tuple((name, operand) for name, operand in named if name in single.keywords)
    return replace(node, target=single.target, args=args, kwargs=kwargs, outputs=(node.outputs[index],), unpack=False)


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
            candidate, tuple(a.name for a in arguments), frozenset(a.name for a in arguments if a.kwarg_only)
        )
    return None


def _reorders(wanted: Sequence[str], arguments: Sequence[Argument]) -> bool:
    """Whether the arguments are not the wanted ones, with defaults after them."""
    has_more = not all(argument.has_default for argument in arguments[len(wanted) :])
    return [argument.type for argument in arguments[: len(wanted)]] != list(wanted) or has_more


def _of_one(type_: str) -> str:
    return type_.removeprefix("List[").removesuffix("]") if type_.startswith("List[") else type_
