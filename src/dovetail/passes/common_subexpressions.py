"""Merge common subexpressions.

Two nodes are *equal* when they apply one overload to the same operands, in the same phase, both inside or both outside
of a checkpoint region that runs again. The later one goes and its users read the earlier one, unless the program could
tell the difference: random draws and effects are never merged, nor values whose memory is returned (two outputs
must stay two tensors, and the caller may write them), nor nodes from which the program reads a size that depends on
data (each has a symbol of its own). A check that was made before goes. What an operator writes in place otherwise
(`zeros` that a collective fills), and memory that nothing was written to, is not merged either: of one tensor, all but
its last writer would need a copy.

    a = exp(x); b = exp(x); c = mul(a, b)   ->   a = exp(x); c = mul(a, a)

A node of the backward phase never merges with an equal forward node: that would undo the recomputation that a
checkpoint asked for, and would lengthen a forward value's life.

Source: Cocke, "Global common subexpression elimination" (1970), by value numbering.
Cost: O(nodes + operands). Can raise peak memory: the kept value lives until the last user of either; the driver
compares the simulated peaks and drops the result if so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, Stage, Value, meta_symbols, symbols_in, values_in
from dovetail.ir.sizes import SizeExpr
from dovetail.ops.facts import leaves_contents_open, may_be_merged
from dovetail.ops.prims import FunctionalForm


@dataclass(frozen=True, slots=True)
class CommonSubexpressionReport:
    """merged: (removed value, kept value) names, in program order."""

    merged: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"merged {len(self.merged)} values with an earlier, equal one"


def merge_common_subexpressions(program: Program) -> tuple[Program, CommonSubexpressionReport]:
    """The program with each later of two equal nodes replaced by the earlier one."""
    escaping = program.output_storages()
    makers = made_symbols(program)
    if program.stage is Stage.WHOLE:  # numbers are read as values there; what they are called matters for sizes only
        sizes = _names_of_sizes(program)
        makers = {node: names for node, names in makers.items() if not sizes.isdisjoint(names)}
    written = _written(program)
    draft = Draft(program)
    first: dict[object, Node] = {}
    merged: list[tuple[str, str]] = []

    for original in program.nodes:
        node = draft.rewritten(original)
        if isinstance(node.target, Prim) and node.target.checks:
            if first.setdefault(_number(replace(node, args=node.args[:-1])), node) is node:
                draft.nodes.append(node)
            continue
        stays = original in makers or not written.isdisjoint(original.results()) or _escapes(node, escaping)
        if stays or not may_be_merged(node) or leaves_contents_open(node.target):
            draft.nodes.append(node)
            continue
        earlier = first.setdefault(_number(node), node)
        if earlier is node:
            draft.nodes.append(node)
            continue
        for old, new in zip(node.outputs, earlier.outputs, strict=True):
            if old is not None and new is not None:
                draft.merge(old, new)
                merged.append((old.name, new.name))
    return draft.finish(), CommonSubexpressionReport(tuple(merged))


def _names_of_sizes(program: Program) -> set[str]:
    """The symbols that operands mention, or descriptions of tensors."""
    found = {name for node in program.nodes for name in node.symbols()}
    found.update(symbols_in(program.outputs))
    return found.union(*(meta_symbols(value.meta) for value in program.values() if value.is_tensor))


def _written(program: Program) -> set[Value]:
    """What operators write that have no functional twin of torch's."""
    forms = [(node, node.target.run) for node in program.nodes if isinstance(node.target, Prim)]
    return {
        value
        for node, form in forms
        if isinstance(form, FunctionalForm)
        for place in form.writes
        if place < len(node.args)
        for value in values_in(node.args[place])
    }


def _escapes(node: Node, escaping: frozenset[int]) -> bool:
    return any(value.is_tensor and value.tensor.storage in escaping for value in node.results())


def _number(node: Node) -> object:
    """Equal for two nodes exactly when they are equal."""
    return (node.target, node.phase, node.recomputed, operand_key(node.args), operand_key(node.kwargs))


def operand_key(operand: Operand) -> object:
    """Equal for two operands exactly when they are the same values and numbers, bit by bit."""
    if isinstance(operand, tuple | list):
        return tuple(map(operand_key, operand))
    if isinstance(operand, bool | int | float | complex):
        return (type(operand).__name__, repr(operand))  # 1, 1.0, True differ, and so do 0.0 and -0.0
    if isinstance(operand, SizeExpr):
        return ("size", repr(operand))  # for the same reason: s0 * 1 is no s0 * 1.0
    return operand if operand.__hash__ is not None else id(operand)
