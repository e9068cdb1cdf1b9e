"""The passes. On `torch.fx.GraphModule`s: `reinplace` and `plan_inplace`; on programs: one file each."""

from __future__ import annotations

from dovetail.passes.inplace_report import InplaceReport
from dovetail.passes.shelf import plan_inplace, reinplace, verify_inplace
from dovetail.passes.weights_shelf import fold_batch_norms, merge_linears, plan_fold_batch_norms, plan_merge_linears

__all__ = [
    "InplaceReport",
    "fold_batch_norms",
    "merge_linears",
    "plan_fold_batch_norms",
    "plan_inplace",
    "plan_merge_linears",
    "reinplace",
    "verify_inplace",
]
