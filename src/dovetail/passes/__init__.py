"""The passes. On `torch.fx.GraphModule`s: a function and its `plan_` for each name here; on programs: one file each."""

from __future__ import annotations

from dovetail.passes.channels_last import ChannelsLastReport
from dovetail.passes.fold_plan import FoldDecision, FoldingPlan
from dovetail.passes.fx_api import (
    channels_last,
    fold_batch_norms,
    fold_constants,
    merge_linears,
    plan_channels_last,
    plan_fold_batch_norms,
    plan_fold_constants,
    plan_inplace,
    plan_merge_linears,
    plan_prepack,
    plan_remove_dropout,
    plan_views_to_reshapes,
    prepack,
    reinplace,
    remove_dropout,
    verify_inplace,
    views_to_reshapes,
)
from dovetail.passes.inplace_report import InplaceReport
from dovetail.passes.prepack import PrepackReport
from dovetail.passes.remove_dropout import DropoutReport
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport

__all__ = [
    "ChannelsLastReport",
    "DropoutReport",
    "FoldDecision",
    "FoldingPlan",
    "InplaceReport",
    "PrepackReport",
    "ViewsToReshapesReport",
    "channels_last",
    "fold_batch_norms",
    "fold_constants",
    "merge_linears",
    "plan_channels_last",
    "plan_fold_batch_norms",
    "plan_fold_constants",
    "plan_inplace",
    "plan_merge_linears",
    "plan_prepack",
    "plan_remove_dropout",
    "plan_views_to_reshapes",
    "prepack",
    "reinplace",
    "remove_dropout",
    "verify_inplace",
    "views_to_reshapes",
]
