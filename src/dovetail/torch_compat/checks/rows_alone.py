"""Checks of `torch_compat.rows_alone`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import rows_alone
from dovetail.torch_compat.checks.difference import first_difference


def check_treats_rows_alone() -> str | None:
    """Operators that are tried are there, and others are never said to treat rows by themselves."""
    return rows_alone.self_check() or first_difference(
        ("a product", rows_alone.treats_rows_alone("mm", torch.float32), False),
        ("a norm of whole numbers", rows_alone.treats_rows_alone("_log_softmax", torch.int64), False),
    )


def check_block_sizes() -> str | None:
    """All rows, and no block of one."""
    return first_difference(
        ("blocks that fit", rows_alone.block_sizes(6, 3), [3, 3]),
        ("a row that is left", rows_alone.block_sizes(7, 3), [3, 4]),
        ("blocks of one", rows_alone.block_sizes(5, 1), [2, 3]),
        ("a single row", rows_alone.block_sizes(1, 4), [1]),
    )


CHECKS = (check_treats_rows_alone, check_block_sizes)
