"""The passes. On `torch.fx.GraphModule`s, each with a `plan_` beside it that says what it does and why: `reinplace`,
`fold_constants`, `remove_dropout`; on programs: one file each."""

from __future__ import annotations

from dovetail.passes.fold_plan import FoldDecision, FoldingPlan
from dovetail.passes.inplace_report import InplaceReport
from dovetail.passes.remove_dropout import DropoutReport
from dovetail.passes.shelf import plan_inplace, reinplace, verify_inplace
from dovetail.passes.shelf_constants import fold_constants, plan_fold_constants, plan_remove_dropout, remove_dropout
from dovetail.passes.weights_shelf import fold_batch_norms, merge_linears, plan_fold_batch_norms, plan_merge_linears

__all__ = [
    "DropoutReport",
    "FoldDecision",
    "FoldingPlan",
    "InplaceReport",
    "fold_batch_norms",
    "fold_constants",
    "merge_linears",
    "plan_fold_batch_norms",
    "plan_fold_constants",
    "plan_inplace",
    "plan_merge_linears",
    "plan_remove_dropout",
    "reinplace",
    "remove_dropout",
    "verify_inplace",
]
