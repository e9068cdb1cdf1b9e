"""Primitives of products by weights in panels: columns of 32 outputs side by side, in the order in which they are read.

    panels = prims.PACK_PANELS(weight)                           # (outputs, inputs), once, where a program runs
    y = prims.panel_linear("relu")(x, panels, outputs, bias)     # relu(x @ weight.t() + bias)

A panel is (inputs, 32); outputs that do not fill the last one are zeros there. Panels are plain tensors of float32.
Machine code multiplies by them (`execute.native.panels`); by itself the primitive runs torch's operators, and takes a
plain weight as well.

Recurrent layers read them, too: one layer, all its directions, all time steps.

    panels = [prims.PACK_PANELS(w_ih), prims.PACK_PANELS(w_hh)]
    out, h, c = prims.recurrent_layer("lstm")(x, panels, [b_ih, b_hh], [h0, c0])

x is (time, batch, inputs), states are (directions, batch, hidden). For two directions there are twice as many weights
and biases, those of the reverse direction last. Results are contiguous. Machine code: `execute.native.recurrent_rows`.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); torch.nn.LSTM, torch.nn.GRU
and torch.nn.RNN, for the order of gates and what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import applied, checked_activation
from dovetail.torch_compat.fakes import is_fake

WIDTH = 32
"""Outputs of a panel."""

MOST_ROOMS = 64
"""Threads that may have memory of their own for parts of an image: bits of the number that says which is taken."""

_MATRIX, _PANELS = 2, 3


def _pack_panels(weight: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    if weight.dtype is not torch.float32 or weight.dim() != _MATRIX:
        raise ValueError(f"weights of {weight.dim()} dimensions of {weight.dtype} are not laid out in panels")
    outputs, inputs = weight.shape
    made = weight.new_zeros(panels_shape(outputs, inputs))
    if is_fake(weight) or weight.is_meta:
        return made
    whole = outputs // WIDTH
    made[:whole].copy_(weight[: whole * WIDTH].view(whole, WIDTH, inputs).transpose(1, 2))
    if outputs % WIDTH:
        made[whole, :, : outputs % WIDTH].copy_(weight[whole * WIDTH :].t())
    return made


# rows: how many the input is expected to have; panels are the same for any number.
PACK_PANELS = Prim("pack_panels", _pack_panels, "prims.PACK_PANELS")


def panels_shape(outputs: int, inputs: int) -> tuple[int, int, int]:
    """The shape of the panels of a weight."""
    return -(-outputs // WIDTH), inputs, WIDTH


def plain_weight(panels: torch.Tensor, outputs: int) -> torch.Tensor:
    """The weight (outputs, inputs) that panels hold, each bit of it; contiguous."""
    count, inputs, _ = panels.shape
    return panels.transpose(1, 2).reshape(count * WIDTH, inputs)[:outputs]


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """`activation(x @ weight.t() + bias)`, contiguous, for a weight in panels and any leading sizes of `x`."""

    activation: str

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, outputs: int, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        check_panels(x, weight, outputs, bias)
        if is_fake(x) or x.is_meta:
            return x.new_empty((*x.shape[:-1], outputs))
        if weight.dim() != _PANELS:
            return applied(self.activation, torch.nn.functional.linear(x.contiguous(), weight, bias))
        made = x.new_empty((*x.shape[:-1], outputs))
        for panel, part in zip(weight, made.split(WIDTH, -1), strict=True):  # takes no more than machine code
            part.copy_(x @ panel[:, : part.shape[-1]])
        return applied(self.activation, made if bias is None else made.add_(bias))


def check_panels(x: torch.Tensor, weight: torch.Tensor, outputs: int, bias: torch.Tensor | None) -> None:
    """Raise ValueError unless machine code reads what there is: it does not look itself."""
    inputs = x.shape[-1] if x.dim() else 0
    expected = panels_shape(outputs, inputs) if weight.dim() == _PANELS else (outputs, inputs)
    if weight.shape != expected or outputs < 1 or x.dim() < _MATRIX:
        raise ValueError(f"{tuple(x.shape)} is not multiplied by {tuple(weight.shape)} for {outputs} outputs")
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"a bias of {tuple(bias.shape)} is not one of {outputs} outputs")
    if any(each.dtype is not torch.float32 for each in (x, weight, *([] if bias is None else [bias]))):
        raise ValueError("products by panels are of float32")


@cache
def panel_linear(activation: str) -> Prim:
    """The primitive `(x, panels, outputs, bias=None)`; see `PanelLinear`. activation: of `ops.packed.ACTIVATIONS`.

    Raises: ValueError for an unknown activation.
    """
    name = "panel_linear" if activation == "none" else f"panel_linear_{activation}"
    run = PanelLinear(checked_activation(activation))
    return Prim(name, run, f"prims.panel_linear({activation!r})", takes_memory=True)


# --- recurrent layers -------------------------------------------------------------------------------------------------

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Parts of a weight, by kind of layer: outputs are this many times the hidden size."""

_SEQUENCE = 3
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
    python = f"prims.recurrent_layer({kind!r})"
    return Prim(f"{kind}_layer", RecurrentLayer(kind), python, gives_tuple=True, takes_memory=True)
