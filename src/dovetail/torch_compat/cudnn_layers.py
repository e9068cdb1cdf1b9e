"""What recurrent layers of cuDNN give on fakes, of which torch knows less than dovetail needs.

Torch's fakes lay the results of batch-first layers out as if they were contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException

_aten = torch.ops.aten
_BATCH_FIRST, _TRAIN, _BATCH_SIZES = 10, 12, 14


def run_layer_on_fakes(*args: Any) -> tuple[Any, ...]:
    """The results of `_cudnn_rnn`.

    Raises: UnsupportedOperatorException for a layer in training: what its backward takes has no size on fakes, and
    dropout draws from a state of cuDNN's own, which goes on from call to call.
    """
    if args[_TRAIN]:
        raise UnsupportedOperatorException(_aten._cudnn_rnn.default)
    result, *others = _aten._cudnn_rnn.default(*args)
    if args[_BATCH_FIRST] and not args[_BATCH_SIZES]:
        result = _time_first(result)
    return result, *others


def _time_first(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes whose second dimension lies first in memory."""
    batch, time, *others = tensor.shape
    shape: Sequence[Any] = (time, batch, *others)
    return tensor.new_empty(shape).transpose(0, 1)
