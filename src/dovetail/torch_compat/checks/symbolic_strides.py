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


CHECKS = (check_strides_of_any_size,)
