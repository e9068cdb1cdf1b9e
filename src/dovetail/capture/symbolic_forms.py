"""Functions of torch whose C++ is written for plain sizes, as they run over symbolic ones: the same operators.

Their C++ would fix every size that it reads. What is written here calls, in the same order, the operators that C++
calls, and is taken only where a size is a symbol and nothing is wrong with the call: errors stay torch's.

Source: `KronImpl` (LinearAlgebra.cpp), `stft` (SpectralOps.cpp), and `affine_grid` of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.torch_compat.spectral import STFT

_aten = torch.ops.aten


def symbolic_form(func: object, args: Sequence[Any], keywords: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What gives the same as a function for these arguments without fixing sizes; None where there is no such thing."""
    form = _FORMS.get(func)
    if form is None or not any(isinstance(one, Tensor) and has_symbols(one) for one in (*args, *keywords.values())):
        return None
    return form if form is not _stft or (not keywords and _is_right(*args)) else None


def has_symbols(tensor: Tensor) -> bool:
    """Whether a size of a tensor is a symbol."""
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)


def _kron(self: Tensor, other: Tensor, **more: Any) -> Tensor:
    if more:
        return torch.kron(self, other, **more)
    rank = max(self.dim(), other.dim())
    ours, theirs = ([*[1] * (rank - one.dim()), *one.shape] for one in (self, other))
    apart = [size for own in ours for size in (own, 1)], [size for own in theirs for size in (1, own)]
    product = torch.mul(_aten._unsafe_view.default(self, apart[0]), _aten._unsafe_view.default(other, apart[1]))
    made: Tensor = _aten._unsafe_view.default(product, [a * b for a, b in zip(ours, theirs, strict=True)])
    return made


def _affine_grid(theta: Tensor, size: Sequence[Any], align_corners: bool | None = None) -> Tensor:
    rank = len(size) - 2  # torch looks for the least of all sizes, so that it would know which one that is
    is_right = rank in (2, 3) and theta.is_floating_point() and tuple(theta.shape[1:]) == (rank, rank + 1)
    if not is_right or any(type(one) is int and one < 1 for one in size):
        return torch.nn.functional.affine_grid(theta, list(size), align_corners)
    return torch.affine_grid_generator(theta, list(size), bool(align_corners))


def _is_right(input: Any, n_fft: Any = 0, *others: Any) -> bool:
    """Whether nothing is wrong with a call of `STFT`, as far as that hangs on numbers that are known."""
    hop, length, window, _, onesided, return_complex, aligned = (*others, *[None] * 7)[:7]
    if torch.is_grad_enabled() and input.requires_grad:  # the gradient of `as_strided` is for one size
        return False
    if input.dim() not in (1, 2) or not all(type(size) is int for size in (n_fft, hop or 1, length or 1)):
        return False
    hop, length = (n_fft // 4 if hop is None else hop), (n_fft if length is None else length)
    if not (0 < length <= n_fft and hop > 0) or return_complex is None or aligned is not None:
        return False
    if window is not None and (tuple(window.shape) != (length,) or window.is_complex()):
        return False
    return bool(input.is_floating_point() or (input.is_complex() and not onesided)) and bool(input.shape[-1] >= n_fft)


def _stft(
    input: Tensor,
    n_fft: int,
    hop: int | None,
    length: int | None,
    window: Tensor | None,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool,
    *_: Any,
) -> Tensor:
    hop, length = (n_fft // 4 if hop is None else hop), (n_fft if length is None else length)
    signals = input.unsqueeze(0) if input.dim() == 1 else input
    if length < n_fft:
        before = (n_fft - length) // 2
        like = input if window is None else window
        options = {"dtype": like.dtype, "layout": torch.strided, "device": like.device}
        whole = _aten.zeros.default([n_fft], **options)
        middle = whole.narrow(0, before, length)
        middle.fill_(1) if window is None else middle.copy_(window)
        window = whole
    count = 1 + (signals.shape[1] - n_fft) // hop
    batch_step, step = signals.stride()
    frames = signals.as_strided((signals.shape[0], count, n_fft), (batch_step, hop * step, step))
    if window is not None:
        frames = frames.mul(window)
    norm = 1 if normalized else 0
    if frames.is_complex():
        made = _aten._fft_c2c.default(frames, [2], norm, True)
    else:
        made = _aten._fft_r2c.default(frames, [2], norm, True if onesided is None else onesided)
    made = made.transpose_(1, 2)
    made = made.squeeze_(0) if input.dim() == 1 else made
    result: Tensor = made if return_complex else torch.view_as_real(made)
    return result


_FORMS: dict[object, Callable[..., Any]] = {
    torch.kron: _kron,
    Tensor.kron: _kron,
    torch.nn.functional.affine_grid: _affine_grid,
    STFT: _stft,
}
