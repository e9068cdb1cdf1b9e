"""Checks of `torch_compat.over_operands`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import over_operands
from dovetail.torch_compat.checks.difference import first_difference


def check_result_may_lie_over_first() -> str | None:
    """Operators that are tried take out=, and others are never said to lie over an operand."""
    return over_operands.self_check() or first_difference(
        ("a product over its operand", over_operands.result_may_lie_over_first("mm", torch.float32), False),
        ("a norm of whole numbers", over_operands.result_may_lie_over_first("_log_softmax", torch.int64), False),
    )


CHECKS = (check_result_may_lie_over_first,)
