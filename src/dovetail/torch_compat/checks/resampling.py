"""Checks of `torch_compat.resampling`."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.resampling import RESAMPLING, resampled_on_fakes


def check_resampled_on_fakes() -> str | None:
    """Sizes and strides are those of the kernel, for each memory format and both ways."""
    for function, op in RESAMPLING.items():
        rank = int(op._schema.name.removesuffix("_aa")[-2])
        factors, corners = [None] * rank, [False] * any(a.name == "align_corners" for a in op._schema.arguments)
        formats = {1: (), 2: (torch.channels_last,), 3: (torch.channels_last_3d,)}[rank]
        for memory_format in (torch.contiguous_format, *formats):
            image = torch.ones(2, 3, *[5] * rank, device="cpu").to(memory_format=memory_format).requires_grad_()
            made = function(image, [4] * rank, *corners, None)
            gradient = torch.ones_like(made)
            made.backward(gradient)
            assert image.grad is not None, "it was asked for"
            backward = getattr(torch.ops.aten, f"{op._schema.name.partition('::')[2]}_backward").default
            mode = FakeTensorMode(shape_env=ShapeEnv())
            fakes = [mode.from_tensor(tensor.detach(), static_shapes=False) for tensor in (image, gradient)]
            with mode:
                there = resampled_on_fakes(op, (fakes[0], [4] * rank, *corners, *factors))
                back = resampled_on_fakes(backward, (fakes[1], [4] * rank, list(fakes[0].shape), *corners, *factors))
            told = first_difference(
                (f"strides of {op}", _numbers(there), made.stride()),
                (f"strides of {backward}", _numbers(back), image.grad.stride()),
            )
            if told is not None:
                return told
    return None


def _numbers(tensor: torch.Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(map(int, tensor.stride()))


CHECKS = (check_resampled_on_fakes,)
