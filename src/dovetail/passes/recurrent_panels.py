"""Lay the weights of recurrent layers out in panels, for machine code that runs all time steps of a layer.

    out, h, c = lstm(x, [h0, c0], [...], 2)    ->    p, q = PACK_PANELS(w), PACK_PANELS(v) ...    # once, where it runs
                                                     y, h_0, c_0 = lstm_layer(x, [p, ...], [b, ...], [h0[:1], c0[:1]])
                                                     out, h_1, c_1 = lstm_layer(y, [q, ...], [d, ...], [h0[1:], c0[1:]])
                                                     h, c = cat([h_0, h_1]), cat([c_0, c_1])      # if they are read

Torch's kernels copy each weight into order in each call, and take Python's and the dispatcher's time for each layer;
machine code reads panels from their first byte to their last, and applies the gates while sums are in the cache. A cell
is a layer of one time step.

Projections, and layers of which some weights change or are read in another way, stay as they are.

Source: torch.nn.LSTM, torch.nn.GRU and torch.nn.RNN.
Cost: O(nodes + operands). Another order of additions rounds differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.analysis.reads import readers_of
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.panels import GATES, PACK_PANELS, WIDTH, recurrent_layer, states_of
from dovetail.ops.recurrent_calls import RecurrentCall, recurrent_call_of
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.layer_rewrites import grows

aten = torch.ops.aten

_MOST_WASTE = 1.35  # columns of panels for each that is filled


@dataclass(frozen=True, slots=True)
class RecurrentReport:
    """What `recurrent_panels` did.

    asked: names of the weights in panels, which must become constants. opaque: those of them that no file holds: all.
    layers: names of the results of layers over them. left: names of the results of others, with the reason.
    """

    asked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{len(self.asked)} weights in panels for {len(self.layers)} recurrent layers, left {len(self.left)}"


def recurrent_panels(
    program: Program, constants: Collection[str], infer: MetaInference
) -> tuple[Program, RecurrentReport]:
    """The program whose recurrent layers over constant weights read these in panels.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Not checked: that the panels become constants; if they do not, they are made in each call.
    """
    calls = {node: call for node in program.nodes if (call := recurrent_call_of(node)) is not None}
    if not calls:
        return program, RecurrentReport()
    known, readers, producers = constant_values(program, constants), readers_of(program), program.producers()
    left: dict[Node, str] = {}
    for node, call in calls.items():
        reason = _left_alone(call, known, producers)
        if reason is not None:
            left[node] = reason
    while True:  # a weight that one layer reads as it is stays so for all
        chosen = calls.keys() - left.keys()
        shared = [
            node
            for node in chosen
            if not all(reader in chosen for weight in calls[node].weights for reader in readers[weight])
        ]
        if not shared:
            break
        left |= dict.fromkeys(shared, "SHARED: a weight is read in another way, too, and would be held twice")
    reasons = tuple((node.results()[0].name, reason) for node, reason in left.items())
    if not chosen:
        return program, RecurrentReport(left=reasons)
    layers = _Layers(program, infer)
    for node in program.nodes:
        if node in chosen:
            layers.run(node, calls[node])
        else:
            layers.draft.take(node)
    made, _ = remove_dead_code(layers.draft.finish())
    names = tuple(value.name for value in layers.panels.values())
    return made, RecurrentReport(names, names, tuple(layers.made), reasons)


def _left_alone(call: RecurrentCall, known: Collection[Value], producers: Mapping[Value, Node]) -> str | None:
    if call.drops:
        return "DROPOUT: it draws random numbers"
    if not all(value in known for value in (*call.weights, *call.biases)):
        return "WEIGHT-CHANGES: its weights are not constants"
    metas = [value.tensor for value in (call.x, *call.states, *call.weights, *call.biases)]
    if any(meta.device.type != "cpu" or meta.dtype is not torch.float32 for meta in metas):
        return "DTYPE: it is not of float32 on the CPU"
    hidden = call.states[0].tensor.shape[-1]
    if not isinstance(hidden, int) or any(
        weight.tensor.shape[0] != GATES[call.kind] * hidden for weight in call.weights
    ):
        return "PROJECTIONS: it has some"
    outputs = GATES[call.kind] * hidden
    if -(-outputs // WIDTH) * WIDTH > _MOST_WASTE * outputs:
        return f"SMALL: {outputs} outputs fill their panels badly"
    return next((reason for weight in call.weights if (reason := grows(weight, producers)) is not None), None)


class _Layers:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.draft = Draft(program)
        self.panels: dict[Value, Value] = {}
        self.made: list[str] = []
        self._maker = NodeMaker(self.draft, infer)

    def run(self, node: Node, call: RecurrentCall) -> None:
        """Add the layers of a call, and let their results stand for its own."""
        current = self.draft.current
        x, states = current(call.x), [current(state) for state in call.states]
        if call.is_cell:
            x, *states = (self._one(node, aten.unsqueeze.default, each, 0) for each in (x, *states))
        elif call.batch_first:
            x = self._one(node, aten.transpose.int, x, 0, 1)
        lasts: list[Sequence[Value]] = []
        width = call.directions
        for layer in range(call.layers):
            part = slice(2 * layer * width, 2 * (layer + 1) * width)
            weights = [self._in_panels(node, weight) for weight in call.weights[part]]
            biases = [current(bias) for bias in call.biases[part]]
            held = [self._of_layer(node, state, layer, call) for state in states]
            target, name = recurrent_layer(call.kind), f"{node.results()[0].name}_{layer}"
            made = self._maker.call(target, (x, weights, biases, held), name=name, origin=node.origin, phase=node.phase)
            self.draft.nodes.append(made)
            x, *last = made.results()
            lasts.append(last)
            self.made.append(x.name)
        ends = [self._together(node, [last[at] for last in lasts]) for at in range(states_of(call.kind))]
        if call.is_cell:
            results = [self._one(node, aten.select.int, end, 0, 0) for end in ends]
        else:
            results = [self._one(node, aten.transpose.int, x, 0, 1) if call.batch_first else x, *ends]
        for old, new in zip(node.outputs, results, strict=True):
            if old is not None:
                self.draft.merge(old, new)

    def _in_panels(self, node: Node, weight: Value) -> Value:
        if weight not in self.panels:
            current = self.draft.current(weight)
            made = self._maker.call(PACK_PANELS, (current, None), name=f"{weight.name}_panels", origin=node.origin)
            self.draft.nodes.append(made)
            (self.panels[weight],) = made.results()
        return self.panels[weight]

    def _of_layer(self, node: Node, state: Value, layer: int, call: RecurrentCall) -> Value:
        if call.layers == 1:
            return state
        width = call.directions
        return self._one(node, aten.slice.Tensor, state, 0, layer * width, (layer + 1) * width)

    def _together(self, node: Node, parts: Sequence[Value]) -> Value:
        return parts[0] if len(parts) == 1 else self._one(node, aten.cat.default, list(parts), 0)

    def _one(self, node: Node, target: object, *args: object) -> Value:
        """The result of a new node of one result, which is added."""
        name = node.results()[0].name
        made = self._maker.call(target, args, name=name, origin=node.origin, phase=node.phase)  # type: ignore[arg-type]
        self.draft.nodes.append(made)
        (result,) = made.results()
        return result
