"""Primitives of recurrent layers over weights in panels: one layer, all its directions, all time steps, float32.

    panels = [prims.PACK_PANELS(w_ih), prims.PACK_PANELS(w_hh)]              # once, where a program runs
    out, h, c = prims.recurrent_layer("lstm")(x, panels, [b_ih, b_hh], [h0, c0])

x is (time, batch, inputs), states are (directions, batch, hidden). For two directions there are twice as many weights
and biases, those of the reverse direction last. Results are contiguous. Machine code runs such layers
(`execute.native.recurrent_rows`); by itself the primitive runs torch's operator, and takes plain weights as well.

Source: torch.nn.LSTM, torch.nn.GRU and torch.nn.RNN, for the order of gates and what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.panels import panels_shape, plain_weight
from dovetail.torch_compat.fakes import is_fake

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Parts of a weight, by kind of layer: outputs are this many times the hidden size."""

_PANELS, _SEQUENCE = 3, 3
_DIRECTIONS = (1, 2)


def states_of(kind: str) -> int:
    """How many states a layer has: the hidden one, and the cell's."""
    return 2 if kind == "lstm" else 1


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """One layer, of one or two directions: `(out, h)`, and `c` for LSTM. kind: of `GATES`."""

    kind: str

    def __call__(
        self,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        check_layer(self.kind, x, weights, biases, states)
        directions, batch, hidden = states[0].shape
        if is_fake(x) or x.is_meta:
            last = [x.new_empty((directions, batch, hidden)) for _ in states]
            return (x.new_empty((*x.shape[:2], directions * hidden)), *last)
        outputs = GATES[self.kind] * hidden
        plain = [plain_weight(weight, outputs) if weight.dim() == _PANELS else weight for weight in weights]
        flat = []
        for at in range(0, len(plain), 2):
            flat += [*plain[at : at + 2], *biases[at : at + 2]]
        held = list(states) if self.kind == "lstm" else states[0]
        operator: Any = getattr(torch.ops.aten, self.kind).input
        made = operator(x, held, flat, bool(biases), 1, 0.0, False, directions > 1, False)
        return tuple(each.contiguous() for each in made)


def check_layer(
    kind: str,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
) -> None:
    """Raise ValueError unless machine code reads what there is: it does not look itself."""
    shape = tuple(states[0].shape) if states else ()
    if x.dim() != _SEQUENCE or len(shape) != _SEQUENCE or shape[0] not in _DIRECTIONS or shape[1] != x.shape[1]:
        raise ValueError(f"a sequence of {tuple(x.shape)} does not fit to states of {shape}")
    if len(states) != states_of(kind) or any(state.shape != shape for state in states):
        raise ValueError(f"{kind} does not have {len(states)} states of {[tuple(state.shape) for state in states]}")
    directions, _, hidden = shape
    outputs, inputs = GATES[kind] * hidden, x.shape[-1]
    sizes = [size for _ in range(directions) for size in (inputs, hidden)]
    found = [tuple(weight.shape) for weight in weights]
    wanted = [
        (outputs, size) if len(shape) == 2 else panels_shape(outputs, size)
        for size, shape in zip(sizes, found, strict=False)
    ]
    if len(found) != len(sizes) or found != wanted:
        raise ValueError(f"{kind} of {inputs} inputs and {hidden} hidden ones has no weights of {found}")
    if biases and [tuple(bias.shape) for bias in biases] != [(outputs,)] * len(sizes):
        raise ValueError(f"{kind} of {hidden} hidden ones has no biases of {[tuple(bias.shape) for bias in biases]}")
    if any(each.dtype is not torch.float32 for each in (x, *weights, *biases, *states)):
        raise ValueError("recurrent layers over panels are of float32")


@cache
def recurrent_layer(kind: str) -> Prim:
    """The primitive `(x, weights, biases, states)`; see `RecurrentLayer`. Raises: ValueError for an unknown kind."""
    if kind not in GATES:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(GATES)}")
    return Prim(f"{kind}_layer", RecurrentLayer(kind), f"prims.recurrent_layer({kind!r})", gives_tuple=True)
