"""Calls of torch's recurrent layers and cells, whatever their kind, in one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.facts import is_recurrent_cell, is_recurrent_layer
from dovetail.ops.prims import OverParameters
from dovetail.torch_compat.dispatch import schema_of

_MATRIX = 2
_ARGUMENTS = 9


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """kind: of `panels.GATES`. weights, biases: of the inputs and of the hidden state, for each direction of
    each layer. drops: whether it draws random numbers. is_cell: whether operands are of one time step.
    """

    kind: str
    x: Value
    states: tuple[Value, ...]
    weights: tuple[Value, ...]
    biases: tuple[Value, ...]
    layers: int = 1
    directions: int = 1
    batch_first: bool = False
    drops: bool = False
    is_cell: bool = False


def recurrent_call_of(node: Node) -> RecurrentCall | None:
    """The call that a node makes; None for another operator, and for projections."""
    run = node.target.run if isinstance(node.target, Prim) else None
    target = run.op if isinstance(run, OverParameters) else node.target
    if is_recurrent_cell(target):
        return _cell(str(schema_of(target).name).removesuffix("_cell"), arguments_of(node))  # type: ignore[arg-type]
    if not is_recurrent_layer(target) or node.kwargs or len(node.args) != _ARGUMENTS:
        return None
    x, held, parameters, has_biases, layers, dropout, train, is_two_ways, batch_first = node.args
    states = _values(held if isinstance(held, list | tuple) else [held])
    values, step = _values(parameters), 4 if has_biases else 2
    directions = 2 if is_two_ways else 1
    if not isinstance(x, Value) or not isinstance(layers, int) or len(values) != step * layers * directions:
        return None
    weights = [value for at in range(0, len(values), step) for value in values[at : at + 2]]
    biases = [value for at in range(0, len(values), step) for value in values[at + 2 : at + step]]
    kind = str(schema_of(target).name)  # type: ignore[arg-type]
    return RecurrentCall(
        *(kind, x, states, tuple(weights), tuple(biases), layers, directions, bool(batch_first)),
        drops=bool(train and dropout),
    )


def _cell(kind: str, named: dict[str, Any]) -> RecurrentCall | None:
    held = named["hx"]
    biases = [named.get("b_ih"), named.get("b_hh")]
    if biases[0] is None and biases[1] is None:
        biases = []
    values = [named["input"], *(held if isinstance(held, list | tuple) else [held]), named["w_ih"], named["w_hh"]]
    if not all(isinstance(value, Value) and len(value.tensor.shape) == _MATRIX for value in values):
        return None
    given = [bias for bias in biases if isinstance(bias, Value)]
    if len(given) < len(biases):
        return None
    x, *states = values[:-2]
    return RecurrentCall(kind, x, tuple(states), tuple(values[-2:]), tuple(given), is_cell=True)


def _values(operands: object) -> tuple[Value, ...]:
    assert isinstance(operands, list | tuple), "weights and states are lists"
    return tuple(value for value in operands if isinstance(value, Value))
