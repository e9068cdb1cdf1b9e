"""Packed sequences as operands of a program: operators that torch runs row by row, by lengths that only data tell.

    data, sizes = pack(x, lengths)                          the rows of each time step, one after the other
    out, h, c = packed_layer(data, sizes, [h0, c0], [...])  one layer of an LSTM, GRU or RNN
    padded, lengths = padded(out, sizes, ...)               back to one row for each sequence

Torch defines the last two by operators of each time step: recorded that way, a program would be for one list of
lengths. Here they stay whole. Their backward runs them again with autograd, and so does what eager does, step by step;
nothing is kept in between.

Autograd adds up what arrives at one tensor in the order in which nodes run. Where something has arrived before,
backward begins with that (`begun`), because the sum of sums would round otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.ops.custom import define
from dovetail.torch_compat.recurrent import above_autograd

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data, sizes = torch.ops.aten._pack_padded_sequence.default(x, lengths, batch_first)
    return data, sizes


def _pack_like(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    context = torch.library.get_ctx()
    rows, times = context.new_dynamic_size(min=1), context.new_dynamic_size(min=1)  # no length is 0
    return x.new_empty((rows, *x.shape[2:])), torch.empty((times,), dtype=torch.int64)


def _pack_backward(grad: torch.Tensor, sizes: torch.Tensor, time_first: Sequence[int]) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._pack_padded_sequence_backward.default(grad, list(time_first), sizes, False)
    return made


def _padded(
    data: torch.Tensor, sizes: torch.Tensor, padding: float, time: int, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ops.aten._pad_packed_sequence.default(data, sizes, False, padding, time)
    return made[0], made[1]


def _padded_like(data: Any, sizes: Any, padding: Any, time: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return data.new_empty((time, batch, *data.shape[1:])), torch.empty((batch,), dtype=torch.int64)


def _padded_backward(
    grad: torch.Tensor, begun: Any, data: torch.Tensor, sizes: torch.Tensor, padding: float, time: int, batch: int
) -> torch.Tensor:
    return _again(lambda x: _padded(x, sizes, padding, time, batch)[:1], [data], [True], [grad], [begun])[0]


def _layer(data: torch.Tensor, sizes: torch.Tensor, states: Any, weights: Any, *how: Any) -> list[torch.Tensor]:
    kind, has_biases, both_ways, grad = how
    held = list(states) if kind == "lstm" else states[0]
    layer = getattr(torch.ops.aten, kind).data
    with torch.set_grad_enabled(grad):  # where it is off, sequences of one length are multiplied in another way
        return list(layer(data, sizes, held, list(weights), has_biases, 1, 0.0, False, both_ways))


def _layer_like(data: Any, sizes: Any, states: Any, weights: Any, *how: Any) -> Any:
    width = states[0].shape[-1] * (2 if how[2] else 1)
    return [data.new_empty((data.shape[0], width)), *(state.new_empty(state.shape) for state in states)]


def _layer_backward(
    grads: Sequence[Any],
    begun: Sequence[Any],
    wanted: Sequence[bool],
    data: torch.Tensor,
    sizes: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    *how: Any,
) -> list[torch.Tensor]:
    count = len(states)

    def run(x: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        return _layer(x, sizes, others[:count], others[count:], *how)

    return _again(run, [data, *states, *weights], wanted, grads, begun)


def _layer_backward_like(
    grads: Any, begun: Any, wanted: Any, data: Any, sizes: Any, states: Any, weights: Any, *_: Any
) -> list[torch.Tensor]:
    return _wanted_like([data, *states, *weights], wanted)


def _again(
    run: Callable[..., Sequence[torch.Tensor]],
    given: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    grads: Sequence[torch.Tensor | None],
    begun: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """The gradients of those that are wanted, added to those that were there before."""
    with above_autograd(), torch.enable_grad():
        inputs = [x.detach().requires_grad_(is_wanted) for x, is_wanted in zip(given, wanted, strict=True)]
        pairs = [(made, grad) for made, grad in zip(run(*inputs), grads, strict=True) if grad is not None]
        leaves = [x for x in inputs if x.requires_grad]
        for leaf, before in zip(leaves, begun, strict=True):
            if before is not None:  # the last node that was made is the first that runs backward
                pairs.append((leaf.view_as(leaf), before))
        ends = [(made, grad) for made, grad in pairs if made.requires_grad]
        found = torch.autograd.grad([m for m, _ in ends], leaves, [g for _, g in ends], allow_unused=True)
    made = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return [_apart(gradient, k, made, grads, begun) for k, gradient in enumerate(made)]


def _apart(gradient: torch.Tensor, place: int, made: Sequence[torch.Tensor], *others: Sequence[Any]) -> torch.Tensor:
    """A gradient in memory of its own, laid out densely."""
    memory = gradient.untyped_storage().data_ptr()
    rest = [*made[:place], *(x for held in others for x in held if x is not None)]
    shares = any(x.untyped_storage().data_ptr() == memory for x in rest)
    return gradient.clone(memory_format=torch.contiguous_format) if shares or not gradient.is_contiguous() else gradient


def _wanted_like(given: Sequence[torch.Tensor], wanted: Sequence[bool]) -> list[torch.Tensor]:
    return [x.new_empty(x.shape) for x, is_wanted in zip(given, wanted, strict=True) if is_wanted]


PACK: Any = define("pack", "(Tensor x, Tensor lengths, bool batch_first) -> (Tensor, Tensor)", _pack, _pack_like)
# The gradient of what was packed, time first.
PACK_BACKWARD: Any = define(
    "pack_backward",
    "(Tensor grad, Tensor sizes, SymInt[] time_first) -> Tensor",
    _pack_backward,
    lambda grad, sizes, time_first: grad.new_empty(list(time_first)),
)
# Time first, and the lengths.
PADDED: Any = define(
    "padded",
    "(Tensor data, Tensor sizes, Scalar padding, SymInt time, SymInt batch) -> (Tensor, Tensor)",
    _padded,
    _padded_like,
)
PADDED_BACKWARD: Any = define(
    "padded_backward",
    "(Tensor grad, Tensor? begun, Tensor data, Tensor sizes, Scalar padding, SymInt time, SymInt batch) -> Tensor",
    _padded_backward,
    lambda grad, begun, data, *_: data.new_empty(data.shape),
)
_LAYER = (
    "Tensor data, Tensor sizes, Tensor[] states, Tensor[] weights, str kind, bool has_biases, bool both_ways, bool grad"
)
# The rows of the output, then the last states.
PACKED_LAYER: Any = define("packed_layer", f"({_LAYER}) -> Tensor[]", _layer, _layer_like)
# The gradients of what is wanted among rows, states and weights.
PACKED_LAYER_BACKWARD: Any = define(
    "packed_layer_backward",
    f"(Tensor?[] grads, Tensor?[] begun, bool[] wanted, {_LAYER}) -> Tensor[]",
    _layer_backward,
    _layer_backward_like,
)
