"""Checks of `torch_compat.symbolic_views`."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.symbolic_views import viewed


def check_viewed() -> str | None:
    """Strides are those of the kernel, and nothing is assumed of the size."""
    found: list[tuple[str, object, object]] = []
    images = torch.ones(5, 2, 2, 24)[:, ::2, ::2]
    cases = (
        (images, lambda x: (x.shape[0], 1, 24)),
        (torch.ones(5, 16, 8), lambda x: (x.shape[0], 16, 1, 8)),
        (torch.ones(5, 2, 1, 2).transpose(1, 2), lambda x: (x.shape[0], 1, 4)),
        (torch.ones(5, 1, 64, 8).transpose(1, 2), lambda x: (x.shape[0], 64, 8)),
        (torch.ones(5, 8), lambda x: (1, x.shape[0], 1, 8)),
    )
    for x, shape in cases:
        env = ShapeEnv()
        dynamic: list[DimDynamic] = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (x.dim() - 1)]
        mode = FakeTensorMode(shape_env=env)
        fake = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic))
        wanted = shape(fake)
        with mode:
            view = fake.view(wanted)
            before = len(env.guards)
            made = viewed(fake, view)
        found.append((f"new facts for {tuple(wanted)}", len(env.guards) - before, 0))
        real = x.view([int(size) for size in shape(x)]).stride()
        found.append((f"strides of {x.stride()} as {tuple(wanted)}", tuple(map(int, made.stride())), real))
    return first_difference(*found)


CHECKS = (check_viewed,)
