"""What recurrent layers of cuDNN give on fakes, of which torch knows less than dovetail needs.

Torch's fakes lay the results of batch-first layers out as if they were contiguous, know no buffer of weights where none
is given, and have no backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
_BATCH_FIRST, _BATCH_SIZES = 10, 14


def run_layer_on_fakes(*args: Any) -> tuple[Any, ...]:
    """The results of `_cudnn_rnn`. The buffer of weights is taken for as large as these, without padding."""
    result, *others, buffer = _aten._cudnn_rnn.default(*args)
    if args[_BATCH_FIRST] and not args[_BATCH_SIZES]:
        result = _time_first(result)
    if buffer is None:
        buffer = result.new_empty((sum(weight.numel() for weight in args[1]),))
    return result, *others, buffer


def run_backward_on_fakes(*args: Any) -> tuple[Any, ...]:
    """The results of `_cudnn_rnn_backward`: gradients of the operand, the states and each weight."""
    operand, weights, _, _, hidden, cell = args[:6]
    batch_first, sizes, wanted = args[14], args[18], args[21]
    gradient = operand.new_empty(operand.shape)
    if batch_first and not sizes:
        gradient = _time_first(gradient)
    of_cell = None if cell is None else _plain(cell)
    return gradient, _plain(hidden), of_cell, list(map(_plain, weights)) if wanted[3] else []


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(tensor.shape)


def _time_first(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes whose second dimension lies first in memory."""
    batch, time, *others = tensor.shape
    shape: Sequence[Any] = (time, batch, *others)
    return tensor.new_empty(shape).transpose(0, 1)
