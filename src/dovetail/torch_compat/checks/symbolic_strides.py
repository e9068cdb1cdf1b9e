"""Checks of `torch_compat.symbolic_strides`."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dovetail.torch_compat import symbolic_strides
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.symbols import hint_of


def check_strides_of_any_size() -> str | None:
    """Activations and sums of images of any size have the strides of kernels: of one channel, of one pixel, gated."""
    pixel, gate = torch.ones(3, 2, 1, 1).as_strided((3, 2, 1, 1), (2, 1, 2, 2)), torch.ones(3, 1, 1, 1)
    image = torch.ones(3, 1, 6, 4).as_strided((3, 1, 6, 4), (24, 1, 4, 1))
    images = torch.ones(3, 6, 4, 2).permute(0, 3, 1, 2)
    found: list[tuple[str, object, object]] = []
    for operands in ([pixel], [image], [images, gate], [image, images], [images.mT, image.mT], [image.mT, gate]):
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            read = [mode.from_tensor(each, symbolic_context=_any_size(each)) for each in operands]
            made = read[0] if len(read) == 1 else read[0] + read[1]
            told = symbolic_strides.strides_of_any_size(read, made)
        real = operands[0].relu() if len(operands) == 1 else operands[0] + operands[1]
        seen = None if told is None else tuple(each if isinstance(each, int) else hint_of(each) for each in told)
        found.append(
            (f"strides of an elementwise result of {[each.stride() for each in operands]}", seen, real.stride())
        )
    return first_difference(*found)


def _any_size(tensor: torch.Tensor) -> Any:
    return StatelessSymbolicContext([DimDynamic.STATIC if size == 1 else DimDynamic.DYNAMIC for size in tensor.shape])


def check_lies_in_a_format() -> str | None:
    """Images in order, and with the channels last; not what else is in other orders, or has gaps."""
    image = torch.ones(3, 4, 6, 2, device="cpu").permute(0, 3, 1, 2)
    given = (image.contiguous(), image, image.flatten(2), image.transpose(2, 3), image[:, :, :, ::2], image[:1, :1])
    found: list[tuple[str, object, object]] = []
    for x in given:
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            told = symbolic_strides.lies_in_a_format(mode.from_tensor(x, symbolic_context=_any_size(x)))
        is_last = x.dim() == image.dim() and x.is_contiguous(memory_format=torch.channels_last)
        found.append(
            (f"whether {tuple(x.shape)} with {x.stride()} lies in a format", told, is_last or x.is_contiguous())
        )
    return first_difference(*found)


def check_is_one_number() -> str | None:
    """Sums of the same symbols in another order are one, and nothing is assumed of others."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a, b = mode.from_tensor(torch.ones(3, 4, device="cpu"), static_shapes=False).shape
    told = [symbolic_strides.is_one_number(*pair) for pair in ((a + b, b + a), (a, b), (a, 3), (3, 3), (3, 4))]
    return first_difference(
        ("numbers that are one", told, [True, False, False, True, False]), ("facts", env.guards, [])
    )


CHECKS = (check_is_one_number, check_lies_in_a_format, check_strides_of_any_size)
