"""Store constant weights of linear layers transposed, in the order in which a product of matrices reads them.

    a = t(w)                               a = clone(t(w), memory_format=contiguous)         # once, in files too
    b = addmm(bias, x, a)            ->    b = addmm(bias, x, a)

`torch.nn.Linear` stores (outputs, inputs), and multiplies by the transpose: BLAS copies blocks of it into order in each
call, which counts where there are few rows. Weights that are read in another way too stay as they are, or they would be
held twice; so do large ones, and those of layers whose activation oneDNN applies, which `prepack` is for.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), for packing in blocks.
Cost: O(nodes + operands). Another order of additions rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Program, Value
from dovetail.passes.layer_calls import LinearCall, Uses, linear_call_of, read_otherwise, uses_of
from dovetail.passes.layer_rewrites import grows, is_read_in_order

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class TransposeReport:
    """What `transpose_weights` did.

    asked: names of the transposed weights, which must become constants. products: names of the results of products by
    them. left: names of the results of other products, with the reason.
    """

    asked: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{len(self.asked)} weights transposed for {len(self.products)} products, left {len(self.left)}"


def transpose_weights(
    program: Program, constants: Collection[str], infer: MetaInference
) -> tuple[Program, TransposeReport]:
    """The program whose products read transposed copies of constant weights, where that pays.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Not checked: that the copies become constants; if they do not, they are made in each call.
    """
    known, uses = constant_values(program, constants), uses_of(program)
    found: dict[Node, LinearCall] = {}
    left: list[tuple[str, str]] = []
    for node in program.nodes:
        call = linear_call_of(node, uses, known)
        reason = call if isinstance(call, str) else None if call is None else _left_alone(call, uses)
        if reason is not None:
            left.append((node.results()[0].name, reason))
        elif isinstance(call, LinearCall):
            found[node] = call
    shared = read_otherwise(found, uses)
    left += [(node.results()[0].name, "SHARED: its weight is read in another way, too") for node in shared]
    chosen = {node: call for node, call in found.items() if node not in shared}
    if not chosen:
        return program, TransposeReport(left=tuple(left))
    draft = Draft(program)
    maker = NodeMaker(draft, infer)
    turned: dict[Value, Value] = {}
    for node in program.nodes:
        if node in chosen:
            node = node.with_operands(_with_turned(chosen[node], turned, maker))
        draft.take(node)
    names = tuple(value.name for value in turned.values())
    products = tuple(node.results()[0].name for node in chosen)
    return draft.finish(), TransposeReport(names, products, tuple(left))


def _left_alone(call: LinearCall, uses: Uses) -> str | None:
    if call.weight is None:
        return "IN-ORDER: its weight is not stored transposed"
    if not is_read_in_order(call):
        return "LARGE: it is packed for oneDNN instead"
    return grows(call.matrix, uses.producers)


def _with_turned(call: LinearCall, turned: dict[Value, Value], maker: NodeMaker) -> Callable[[Value], Value]:
    """Puts the transposed copy in the matrix's place."""
    matrix, like = call.matrix, call.nodes[0]
    if matrix not in turned:
        assert call.weight is not None, "others are left alone"
        kwargs = (("memory_format", torch.contiguous_format),)
        name = f"{call.weight.name}_transposed"
        node = maker.call(aten.clone.default, (maker.draft.current(matrix),), kwargs, name=name, origin=like.origin)
        maker.draft.nodes.append(node)
        (turned[matrix],) = node.results()
    return lambda value: turned[matrix] if value is matrix else value
