"""Convolutions on fakes, for any number of images, and for one of any size.

On a CPU, torch takes one kernel for less than 16 images and may take another from there on, and other ones for a single
image of more than 20,480 numbers. Its fakes ask which one, to know how the result lies: programs would be for fewer, or
more. But it lies as the image and the weight do, whichever kernel runs, so both are asked.

Source: `use_mkldnn` and `determine_backend_memory_format` (Convolution.cpp) of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.torch_compat.symbolic_strides import is_one_number

_FEW, _MANY = 2, 16
_MOST_KNOWN = 1024
_KNOWN: dict[tuple[Any, ...], tuple[Sequence[int], Sequence[int], torch.dtype]] = {}  # of layers that come again


def convolved_on_fakes(op: object, args: Sequence[Any]) -> torch.Tensor | None:
    """What a convolution of a symbolic number of images, or of one of symbolic sizes, gives on fakes, if that is the
    same for every number above 1, or size.

    None for all other calls.
    """
    if op is not torch.ops.aten.convolution.default:
        return None
    image, *others = args
    if image.device.type != "cpu" or image.dim() != others[0].dim():
        return None
    is_any_number = isinstance(image.shape[0], torch.SymInt)
    if not is_any_number and (image.shape[0] != 1 or all(type(size) is int for size in image.shape)):
        return None
    key = _key(image, others) if is_any_number else None
    found = _KNOWN.get(key) if key is not None else None
    if found is None:
        few, many = _of_two_kernels(image, others)
        if not all(map(is_one_number, (*few.shape[1:], *few.stride()), (*many.shape[1:], *many.stride()))):
            return None
        found = few.shape[1:], few.stride(), few.dtype
        if key is not None:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = found
    shape, stride, dtype = found
    return image.new_empty_strided((image.shape[0], *shape), stride, dtype=dtype)


def _of_two_kernels(image: torch.Tensor, others: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels give that images may get, besides how many there are."""
    few = torch.ops.aten.convolution.default(_of(image, _FEW), *others)
    if isinstance(image.shape[0], torch.SymInt):
        return few, torch.ops.aten.convolution.default(_of(image, _MANY), *others)
    is_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:  # as for small images
        return few, torch.ops.aten.convolution.default(image, *others)
    finally:
        torch._C._set_mkldnn_enabled(is_enabled)


def _key(image: torch.Tensor, others: Sequence[Any]) -> tuple[Any, ...] | None:
    """What the result hangs on; None where a size besides the number of images is symbolic."""
    weight, bias, *numbers = others
    sizes = (*image.shape[1:], *image.stride(), *weight.shape, *weight.stride())
    flat = [each for number in numbers for each in (number if isinstance(number, list | tuple) else (number,))]
    if not all(type(each) is int for each in sizes) or not all(type(each) in (int, bool) for each in flat):
        return None
    tensors = [(each.dtype, each.device, each.requires_grad) for each in (image, weight, bias) if each is not None]
    around = torch.get_num_threads(), torch.is_grad_enabled(), torch._C._get_mkldnn_enabled()
    form = [len(number) if isinstance(number, list | tuple) else -1 for number in numbers]
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (sizes, image.dim(), tuple(flat), tuple(form), *tensors, bias is None, *around, deterministic)


def _of(image: torch.Tensor, number: int) -> torch.Tensor:
    return image.new_empty_strided((number, *image.shape[1:]), image.stride())
