"""Checks of `torch_compat.taken_dtypes`."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch_compat import fakes, taken_dtypes
from dovetail.torch_compat.checks.difference import first_difference

_aten = torch.ops.aten


def _said(op: Any, *operands: Any) -> str:
    mode = fakes.new_fake_mode()
    twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in operands]
    try:
        with mode:
            taken_dtypes.refuse_dtypes(op, twins, {})
    except RuntimeError as error:
        return str(error)
    return ""


def check_refuse_dtypes() -> str | None:
    """Kernels that refuse operands are found out, of few elements and of many; those that take them are not."""
    found: list[tuple[str, object, object]] = []
    for rows in (2, 1 << 18):
        plain, wide = torch.zeros(rows, 3, device="cpu"), torch.zeros(rows, 3, dtype=torch.float64, device="cpu")
        half, whole = plain.bfloat16(), plain.long()
        weight, targets = torch.zeros(3, device="cpu"), torch.zeros(rows, dtype=torch.int32, device="cpu")
        norm, loss = _aten.native_layer_norm.default, _aten.nll_loss_forward.default
        found += [
            (f"a product, {rows}", bool(_said(_aten.mm.default, wide, torch.zeros(3, 3, device="cpu"))), True),
            (f"a norm, {rows}", bool(_said(norm, wide, [3], weight, weight, 1e-5)), True),
            (f"a norm of 16 bits, {rows}", _said(norm, half, [3], weight, weight, 1e-5), ""),
            (f"a softmax of whole numbers, {rows}", bool(_said(_aten._log_softmax.default, whole, 1, False)), True),
            (f"targets of 32 bits, {rows}", bool(_said(loss, plain, targets, None, 1, -100)), True),
            (f"targets, {rows}", _said(loss, plain, targets.long(), None, 1, -100), ""),
            (f"rows, {rows}", _said(_aten.index_select.default, plain, 0, targets), ""),
        ]
    return first_difference(*found)


CHECKS = (check_refuse_dtypes,)
