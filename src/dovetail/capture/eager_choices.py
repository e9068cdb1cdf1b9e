"""Functions of torch whose C++ decides otherwise where a mode watches its tensors, as while code is recorded.

*Vectors*: singular values, eigenvalues, and norms made of them need no vectors. C++ leaves these out where no gradient
is wanted, and LAPACK then takes another way, which rounds otherwise; but of a watched tensor it takes for granted that
vectors may be wanted. So while such a function runs, decompositions are recorded as eager mode runs them.

*Copies*: those that `copy` makes of a watched tensor are made by `torch_compat.copies`.

*Sizes*: C++ computes the size of a resampled image from plain numbers, so that symbolic sizes would be fixed. Here the
operator is called for a size that is computed in Python. `symbolic_forms` has other functions.

*Lengths*: `ctc_loss` divides by a tensor of those that are numbers. It writes into its memory: fakes have none.

*Checks*: of values, see `checks_of_values`.

Source: `_may_require_fw_or_bw_grad` (BatchLinearAlgebra.cpp), `compute_output_size` (UpSample.h) and `ctc_loss_impl`
(LossCTC.cpp) of torch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.functional import ctc_loss, interpolate
from torch.overrides import TorchFunctionMode

from dovetail.capture.checks_of_values import check_values
from dovetail.capture.places import without_modes_asked
from dovetail.capture.symbolic_forms import symbolic_form
from dovetail.ir.provenance import is_library_file
from dovetail.ops.sized_operators import sized_form
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.copies import copied_fake, shared_fake
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.modes import unnoticed_mode
from dovetail.torch_compat.nested import has_symbolic_numbers
from dovetail.torch_compat.resampling import RESAMPLING
from dovetail.torch_compat.values_alone import WithoutVectors

_linalg, _Tensor = torch.linalg, torch.Tensor
_OF_VALUES = frozenset(
    {
        *(_linalg.svdvals, _linalg.eigvals, _linalg.eigvalsh),
        *(_linalg.matrix_norm, _linalg.norm, _linalg.cond, _linalg.matrix_rank),
        *(torch.norm, _Tensor.norm, torch.nuclear_norm),
    }
)
_SVD = frozenset({torch.svd, _Tensor.svd})  # values alone where the code says so
_PLACE = 2  # of the argument that says so
_IN_PYTHON = frozenset(
    {
        *(interpolate, ctc_loss, torch.stft, _Tensor.stft),
        *(F.lp_pool1d, F.lp_pool2d, F.lp_pool3d),
    }
)
_NONE, _MEAN = 0, 1  # reductions
_CTC_OPTIONS = 3


@contextmanager
def eager_choices() -> Iterator[None]:
    """While active, functions of torch decide as they do where nothing watches."""
    with _EagerChoices(), unnoticed_mode():
        yield


class _EagerChoices(TorchFunctionMode):
    """The function mode of `eager_choices`."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        check_values(func, args, keywords)
        if func is _Tensor.__deepcopy__ and is_fake(args[0]):
            return copied_fake(*args)
        if func is _Tensor.__reduce_ex__ and is_fake(args[0]) and _is_copying(sys._getframe(1)):
            return shared_fake, (args[0],)
        if (func in _OF_VALUES or (func in _SVD and not _wants_vectors(args, keywords))) and not transform_is_active():
            with WithoutVectors():
                return func(*args, **keywords)
        if func in _IN_PYTHON and args and (func is ctc_loss or _has_symbols(*args, *keywords.values())):
            with self:
                return without_modes_asked(func)(*args, **keywords)
        if func in RESAMPLING and not keywords and _has_symbols(*args):
            return _resampled(func, args)
        if func is torch.ctc_loss and not keywords and _divides_by_numbers(*args):
            return _mean_ctc_loss(*args)
        form = symbolic_form(func, args, keywords) or sized_form(func, args, keywords)
        if form is not None:
            return form(*args, **keywords)
        return func(*args, **keywords)


def _is_copying(frame: FrameType | None) -> bool:
    """Whether `copy.copy` asks, through torch, and not `pickle`."""
    while frame is not None and is_library_file(frame.f_code.co_filename) and frame.f_code.co_filename != copy.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == copy.__file__


def _wants_vectors(args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    return bool(args[_PLACE] if len(args) > _PLACE else keywords.get("compute_uv", True))


def _has_symbols(*given: Any) -> bool:
    """Whether a number, one of a list, or a size of a tensor is a symbol."""
    return has_symbolic_numbers([each.shape if isinstance(each, torch.Tensor) else each for each in given])


def _resampled(func: Any, args: Sequence[Any]) -> Any:
    """What C++ gives for an image, a size or None, whether corners are aligned (of some), and factors or None."""
    image, size, *options, factors = args
    sizes = image.shape[2:]
    if (size is None) == (factors is None) or len(factors or size) != len(sizes):
        return func(*args)  # which says what is wrong
    wanted = [_scaled(now, factor) for now, factor in zip(sizes, factors, strict=True)] if size is None else size
    if any(isinstance(one, int) and one < 1 for one in wanted):
        return func(*args)
    return RESAMPLING[func](image, wanted, *options, *(factors or [None] * len(sizes)))


def _scaled(size: Any, factor: float) -> Any:
    return size * int(factor) if float(factor).is_integer() else torch.sym_int(size * factor)


def _divides_by_numbers(log_probs: Any, targets: Any, lengths: Any, target_lengths: Any, *more: Any) -> bool:
    """Whether a call of `ctc_loss` with all its arguments wants the mean over lengths that are numbers."""
    is_known = isinstance(target_lengths, list | tuple) and all(type(one) is int for one in target_lengths)
    return is_known and len(more) == _CTC_OPTIONS and more[1] == _MEAN


def _mean_ctc_loss(
    log_probs: Any, targets: Any, lengths: Any, target_lengths: Any, blank: int, _: int, zero_infinity: bool
) -> Any:
    """What C++ computes of the losses."""
    losses = torch.ctc_loss(log_probs, targets, lengths, target_lengths, blank, _NONE, zero_infinity)
    letters = torch.tensor(target_lengths, dtype=losses.dtype, device=losses.device)
    return (losses / letters.clamp_min(1)).mean()
