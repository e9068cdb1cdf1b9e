"""Recurrent layers (GRU, LSTM, RNN) and their cells as one operator each.

Torch defines `aten.gru.input` and its kin by other operators, one set for each time step. Recorded that way a program
is for one length only, and slower than eager, which runs the steps in C++. `recorded_whole` lets the operator itself
reach the recorder, which keeps it where it draws no random numbers. A cell is written in place, part by part: taken
apart it would be three times slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.ir.known_results import KnownResults
from dovetail.ir.prim import Prim
from dovetail.ops.facts import is_recurrent_cell, is_recurrent_layer, runs_in_grad_mode
from dovetail.ops.prims import in_grad_mode, over_parameters
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.recurrent import functions_below_autograd

_WEIGHTS = 2
_DROPOUT, _TRAIN, _BIDIRECTIONAL, _BATCH_FIRST = 5, 6, 7, 8


@contextmanager
def recorded_whole() -> Iterator[None]:
    """While active, recurrent layers reach dispatch modes as one operator each, where no gradient can be wanted."""
    with (
        functions_below_autograd(("gru", "lstm", "rnn_tanh", "rnn_relu"), _suits),
        functions_below_autograd(("gru_cell", "lstm_cell"), _is_on_cpu),
    ):
        yield


def _suits(args: Sequence[Any]) -> bool:
    """Whether one operator has eager's bits. Packed sequences have other arguments."""
    is_padded = len(args) == _BATCH_FIRST + 1 and isinstance(args[3], bool)
    return is_padded and (_lies_in_order(args) or len(_requiring(args)) == 1)


def _is_on_cpu(args: Sequence[Any]) -> bool:
    return isinstance(args[0], torch.Tensor) and args[0].device.type == "cpu"


def _lies_in_order(args: Sequence[Any]) -> bool:
    """Whether the steps of the sequence lie one after the other; then it makes no difference what weights require."""
    return not args[_BATCH_FIRST] and bool(args[0].is_contiguous())


def _requiring(args: Sequence[Any]) -> set[bool]:
    """Whether weights require gradients; both where some do and some do not."""
    return {bool(weight.requires_grad) for weight in args[_WEIGHTS]}


def as_recorded(func: Overload, args: Sequence[Any]) -> Overload | Prim:
    """An operator as it stands in the program, which runs without autograd."""
    if runs_in_grad_mode(func) and torch.is_grad_enabled():
        return in_grad_mode(func)
    if is_recurrent_layer(func) and not _lies_in_order(args) and True in _requiring(args):
        return over_parameters(func)
    return func


def stays_whole(func: Overload, args: Sequence[Any]) -> bool:
    """Whether a composite operator is recorded as it is: a recurrent one on a CPU, without dropout."""
    if is_recurrent_cell(func):
        return _is_on_cpu(args)
    return is_recurrent_layer(func) and _suits(args) and _is_on_cpu(args) and not (args[_TRAIN] and args[_DROPOUT] > 0)


def result_of(func: Overload, args: Sequence[Any], keywords: Mapping[str, Any], known: KnownResults) -> Any:
    """What an operator gives on fakes; for a recurrent one at the cost of one time step, whatever the length."""
    if not is_recurrent_layer(func):
        return known.run(func, args, keywords)
    x, states = args[0], args[1]
    time = 1 if args[_BATCH_FIRST] else 0
    if all(isinstance(size, int) for size in x.shape):
        func(x.narrow(time, 0, 1), *args[1:])  # torch's own checks of its arguments
    held = [states] if isinstance(states, torch.Tensor) else list(states)
    features = held[0].shape[-1] * (2 if args[_BIDIRECTIONAL] else 1)
    output = x.new_empty((x.shape[time], x.shape[1 - time], features))
    ends = [x.new_empty(state.shape) for state in held]
    return (output.transpose(0, 1) if time else output, *ends)
