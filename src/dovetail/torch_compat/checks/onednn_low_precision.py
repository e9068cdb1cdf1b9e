"""Checks of `torch_compat.onednn_low_precision`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import onednn_low_precision as low
from dovetail.torch_compat.checks.difference import first_difference


def check_pack_int8_weight() -> str | None:
    """A packed weight serves inputs of other numbers of rows than it was packed for, and is a copy."""
    if not low.multiplies_int8():
        return None
    weight = torch.arange(-10, 11, dtype=torch.int8).view(3, 7)
    packed, exact = low.pack_int8_weight(weight, 2), weight.float().sum(1).expand(5, 3)
    weight.zero_()
    ones = torch.full((5, 7), low.ZERO_POINT + 1, dtype=torch.uint8)
    return first_difference(("the sums", low.int8_product(ones, packed, torch.ones(3)).equal(exact), True))


def check_int8_product() -> str | None:
    """Columns have their own scales, and results are contiguous."""
    if not low.multiplies_int8():
        return None
    weight = torch.tensor([[1, 2], [-3, 4], [127, -127]], dtype=torch.int8)
    x = torch.tensor([[129, 128], [255, 1]], dtype=torch.uint8)
    made = low.int8_product(x, low.pack_int8_weight(weight, None), torch.tensor([1.0, 2.0, 0.5]))
    return first_difference(
        ("the numbers", made.tolist(), [[1.0, -6.0, 63.5], [-127.0, -1778.0, 16129.0]]),
        ("the strides", made.stride(), (3, 1)),
    )


def check_multiplies_int8() -> str | None:
    """The answer is a plain one, the same each time."""
    return first_difference(("the answer", low.multiplies_int8() in (False, True), True))


def check_multiplies_bfloat16() -> str | None:
    """The answer is a plain one; where it is yes, there are kernels."""
    if not low.multiplies_bfloat16():
        return None
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    return first_difference(("a product", torch.nn.functional.linear(x, x).tolist(), [[3.0, 3.0], [3.0, 3.0]]))


CHECKS = (check_pack_int8_weight, check_int8_product, check_multiplies_int8, check_multiplies_bfloat16)
