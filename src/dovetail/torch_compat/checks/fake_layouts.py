"""Checks of `torch_compat.fake_layouts`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import fake_layouts, fakes
from dovetail.torch_compat.checks.difference import first_difference

_aten = torch.ops.aten


def check_as_laid_out() -> str | None:
    """Eval batch norm is laid out as its kernel does, over inputs of every order of dimensions."""
    found = []
    for x in (torch.ones(2, 5, 4).transpose(1, 2), torch.ones(2, 4, 5, 3).permute(0, 3, 1, 2), torch.ones(3, 2).t()):
        channels = x.shape[1]
        given = (x, None, None, torch.zeros(channels), torch.ones(channels), False, 0.1, 1e-5)
        mode = fakes.new_fake_mode()
        twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in given]
        with mode:
            made = fake_layouts.as_laid_out(
                _aten.native_batch_norm.default, twins, _aten.native_batch_norm.default(*twins)
            )
        found.append((f"strides {x.stride()}", made[0].stride(), _aten.native_batch_norm.default(*given)[0].stride()))
    return first_difference(*found)


def check_right_layouts() -> str | None:
    """The mode does the same for whatever runs in it."""
    x, mode = torch.ones(2, 5, 4).transpose(1, 2), fakes.new_fake_mode()
    given = (None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5)
    twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in (x, *given)]
    with mode, fake_layouts.RightLayouts():
        made = _aten.native_batch_norm.default(*twins)
    return first_difference(("strides", made[0].stride(), _aten.native_batch_norm.default(x, *given)[0].stride()))


CHECKS = (check_as_laid_out, check_right_layouts)
