"""Checks of `torch_compat.flops`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import flops
from dovetail.torch_compat.checks.difference import first_difference

_aten = torch.ops.aten


def check_flops_of() -> str | None:
    """Products and convolutions have formulas over shapes, and what is pointwise has none."""
    a, b, image = torch.Size((2, 3)), torch.Size((3, 5)), torch.Size((1, 4, 8, 8))
    weight, out = torch.Size((6, 4, 3, 3)), torch.Size((1, 6, 6, 6))
    convolution = (image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return first_difference(
        ("a product", flops.flops_of(_aten.mm.default, (a, b), {}, torch.Size((2, 5))), 2 * 2 * 3 * 5),
        (
            "a product with a sum",
            flops.flops_of(_aten.addmm.default, (torch.Size((5,)), a, b), {"beta": 1}, torch.Size((2, 5))),
            2 * 2 * 3 * 5,
        ),
        (
            "a convolution",
            flops.flops_of(_aten.convolution.default, convolution, {}, out),
            2 * 6 * 6 * 6 * 4 * 3 * 3,
        ),
        ("a sum", flops.flops_of(_aten.add.Tensor, (a, a), {}, a), None),
    )


def check_has_formula() -> str | None:
    """Products have a formula, and what is pointwise has none."""
    found = [flops.has_formula(op) for op in (_aten.mm.default, _aten.add.Tensor)]
    return first_difference(("what has a formula", found, [True, False]))


CHECKS = (check_flops_of, check_has_formula)
