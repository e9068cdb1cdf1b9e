"""Checks of `torch_compat.convolutions`."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.convolutions import convolved_on_fakes

_OP = torch.ops.aten.convolution.default


def check_convolved_on_fakes() -> str | None:
    """Sizes and strides are those of the kernel, for each memory format, and nothing is assumed of the number."""
    found: list[tuple[str, object, object]] = []
    for size, memory_format in ((1, torch.contiguous_format), (3, torch.channels_last), (1, torch.channels_last)):
        image = torch.ones(3, 4, 5, 5, device="cpu").to(memory_format=memory_format)
        weight = torch.ones(6, 4, size, size, device="cpu")
        rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        fake, twin = mode.from_tensor(image, static_shapes=False), mode.from_tensor(weight)
        with mode:
            made = convolved_on_fakes(_OP, (fake, twin, *rest))
        shape, stride = ((), ()) if made is None else (tuple(map(int, made.shape)), tuple(map(int, made.stride())))
        real = _OP(image, weight, *rest)
        name = f"{memory_format}, kernel {size}"
        found += [(f"shape, {name}", shape, tuple(real.shape)), (f"strides, {name}", stride, real.stride())]
        facts = [str(guard.expr) for guard in env.guards if "16" in str(guard.expr)]
        found.append((f"facts, {name}", facts, []))
        found += _of_one_image(image[:1], weight, rest)
    return first_difference(*found)


def _of_one_image(
    image: torch.Tensor, weight: torch.Tensor, rest: tuple[object, ...]
) -> list[tuple[str, object, object]]:
    """Shape and strides of the result for one image of any size, of which nothing is assumed."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    sizes: Any = StatelessSymbolicContext([DimDynamic.STATIC] * 2 + [DimDynamic.DYNAMIC] * 2)
    fake, twin = mode.from_tensor(image, symbolic_context=sizes), mode.from_tensor(weight)
    with mode:
        made = convolved_on_fakes(_OP, (fake, twin, *rest))
    real, name = _OP(image, weight, *rest), f"one image with {image.stride()}"
    told = None if made is None else (tuple(map(int, made.shape)), tuple(map(int, made.stride())))
    facts = [str(guard.expr) for guard in env.guards if "20480" in str(guard.expr)]
    return [(name, told, (tuple(real.shape), real.stride())), (f"facts, {name}", facts, [])]


CHECKS = (check_convolved_on_fakes,)
