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
_DROPOUT_OF_FUNCTION, _TRAIN_OF_FUNCTION = 5, 6


def draws_for_itself(args: Sequence[Any]) -> bool:
    """Whether a call of `torch.lstm` and its like, over a padded sequence, drops numbers in cuDNN.

    cuDNN draws from a state of its own. Torch makes it anew in the first such call after a seed was set, from a number
    that it draws itself; and a call on fakes counts as that first one.
    """
    x, dropout, train = args[0], args[_DROPOUT_OF_FUNCTION], args[_TRAIN_OF_FUNCTION]
    return x.device.type == "cuda" and torch.backends.cudnn.enabled and bool(train) and dropout > 0


def run_layer_on_fakes(*args: Any) -> tuple[Any, ...]:
    """The results of `_cudnn_rnn`.

    Raises: UnsupportedOperatorException for a layer in training: what its backward takes has no size on fakes.
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
