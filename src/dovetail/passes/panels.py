"""Lay constant weights of linear layers out in panels, for machine code that multiplies few rows by them.

    a = t(w)                               p = PACK_PANELS(w)                                # once, where it runs
    b = addmm(bias, x, a)            ->    c = panel_linear("gelu")(x, p, outputs, bias)
    c = gelu(b)

Of a weight that is stored as it multiplies, `t(w)` is laid out.

BLAS copies blocks of a weight into order in each call, or reads it in strips far apart; panels are read from their
first byte to their last. Biases are added and activations applied while results are in the cache.

Weights that are read in another way too stay as they are, or they would be held twice. Small ones are left alone:
machine code calls BLAS for them with everything around (`execute.native`). Where no executor multiplies by panels,
oneDNN's packed weights are used in their place.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
Cost: O(nodes + operands). Another order of additions rounds differently.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.panels import PACK_PANELS, panel_linear
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.layer_calls import LinearCall, linear_call_of, read_otherwise, uses_of
from dovetail.passes.layer_rewrites import grows, shown_through, unflattened

aten = torch.ops.aten

_LARGE_WEIGHT = 1 << 16  # elements; a product by a smaller one costs its call (measured on one thread, AVX-512)


@dataclass(frozen=True, slots=True)
class PanelsReport:
    """What `panels` did.

    asked: names of the weights in panels, which must become constants. opaque: those of them that no file holds: all.
    linears: names of the results of products by them. left: names of the results of other products, with the reason.
    """

    asked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{len(self.asked)} weights in panels for {len(self.linears)} products, left {len(self.left)}"


def panels(program: Program, constants: Collection[str], infer: MetaInference) -> tuple[Program, PanelsReport]:
    """The program whose products by constant weights read these in panels, where that pays.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Not checked: that the panels become constants; if they do not, they are made in each call.
    """
    known, uses = constant_values(program, constants), uses_of(program)
    found: dict[Node, LinearCall] = {}
    left: list[tuple[str, str]] = []
    for node in program.nodes:
        call = linear_call_of(node, uses, known)
        reason = call if isinstance(call, str) else None if call is None else _left_alone(call)
        if isinstance(call, LinearCall) and reason is None:
            reason = grows(call.matrix, uses.producers)
        if reason is not None:
            left.append((node.results()[0].name, reason))
        elif isinstance(call, LinearCall):
            found[call.nodes[-1]] = call
    left += [
        (found.pop(node).result.name, "SHARED: its weight is read in another way, too")
        for node in read_otherwise(found, uses)
    ]
    if not found:
        return program, PanelsReport(left=tuple(left))
    covered = {node for call in found.values() for node in call.nodes}
    layer = _Layer(program, infer)
    for node in program.nodes:
        if node in found:
            layer.multiply(found[node])
        elif node not in covered:
            layer.state.follow(node)
    made, _ = remove_dead_code(layer.state.finish())
    names = tuple(value.name for value in layer.panels.values())
    return made, PanelsReport(names, names, tuple(layer.linears), tuple(left))


def _left_alone(call: LinearCall) -> str | None:
    inner, outer = call.matrix.tensor.shape
    assert isinstance(inner, int) and isinstance(outer, int), "constants have known sizes"
    return None if inner * outer >= _LARGE_WEIGHT else f"SMALL: a product by [{inner}, {outer}] costs its call"


class _Layer:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.state = LayoutPropagation(program, infer)
        self.panels: dict[Value, Value] = {}
        self.linears: list[str] = []
        self._producers = program.producers()

    def multiply(self, call: LinearCall) -> None:
        """Add the product, and give its result the shape that it had."""
        state, first = self.state, call.nodes[0]
        whole = unflattened(call, self._producers)
        x, views = (call.x, call.views) if whole is None else (whole, ())
        bias = None if call.bias is None else state.current(call.bias)
        args = (state.current(x), self._panels_of(call), call.matrix.tensor.shape[1], bias)
        name = (call.result if not views else first.results()[0]).name
        node = state.maker.call(panel_linear(call.activation), args, name=name, origin=first.origin, phase=first.phase)
        state.stand_in(shown_through(state, node, views), call.nodes[-1].outputs)
        self.linears.append(state.current(call.result).name)

    def _panels_of(self, call: LinearCall) -> Value:
        """The weight in panels, made once for all products by it."""
        state, origin = self.state, call.nodes[0].origin
        stored = state.current(call.matrix if call.weight is None else call.weight)
        if stored not in self.panels:
            weight = stored
            if call.weight is None:
                turned = state.maker.call(aten.t.default, (stored,), name=f"{stored.name}_t", origin=origin)
                weight = state.add(turned)
            made = state.maker.call(PACK_PANELS, (weight, None), name=f"{stored.name}_panels", origin=origin)
            self.panels[stored] = state.add(made)
        return self.panels[stored]
