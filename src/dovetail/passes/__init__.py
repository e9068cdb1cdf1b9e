"""The passes. On `torch.fx.GraphModule`s: a function and its `plan_` for each name here; on programs: one file each."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.passes.channels_last import ChannelsLastReport
    from dovetail.passes.fold_plan import FoldDecision, FoldingPlan
    from dovetail.passes.fx_api import (
        channels_last,
        fold_batch_norms,
        fold_constants,
        merge_linears,
        narrow,
        plan_channels_last,
        plan_fold_batch_norms,
        plan_fold_constants,
        plan_inplace,
        plan_merge_linears,
        plan_narrow,
        plan_prepack,
        plan_quantize,
        plan_remove_dropout,
        plan_transpose_weights,
        plan_views_to_reshapes,
        prepack,
        quantize,
        reinplace,
        remove_dropout,
        transpose_weights,
        verify_inplace,
        views_to_reshapes,
    )
    from dovetail.passes.inplace_report import InplaceReport
    from dovetail.passes.narrow import NarrowReport
    from dovetail.passes.prepack import PrepackReport
    from dovetail.passes.quantize import QuantizeReport
    from dovetail.passes.remove_dropout import DropoutReport
    from dovetail.passes.transpose_weights import TransposeReport
    from dovetail.passes.views_to_reshapes import ViewsToReshapesReport

__all__ = [
    "ChannelsLastReport",
    "DropoutReport",
    "FoldDecision",
    "FoldingPlan",
    "InplaceReport",
    "NarrowReport",
    "PrepackReport",
    "QuantizeReport",
    "TransposeReport",
    "ViewsToReshapesReport",
    "channels_last",
    "fold_batch_norms",
    "fold_constants",
    "merge_linears",
    "narrow",
    "plan_channels_last",
    "plan_fold_batch_norms",
    "plan_fold_constants",
    "plan_inplace",
    "plan_merge_linears",
    "plan_narrow",
    "plan_prepack",
    "plan_quantize",
    "plan_remove_dropout",
    "plan_transpose_weights",
    "plan_views_to_reshapes",
    "prepack",
    "quantize",
    "reinplace",
    "remove_dropout",
    "transpose_weights",
    "verify_inplace",
    "views_to_reshapes",
]

_REPORTS = {
    "ChannelsLastReport": "channels_last",
    "DropoutReport": "remove_dropout",
    "FoldDecision": "fold_plan",
    "FoldingPlan": "fold_plan",
    "InplaceReport": "inplace_report",
    "NarrowReport": "narrow",
    "PrepackReport": "prepack",
    "QuantizeReport": "quantize",
    "TransposeReport": "transpose_weights",
    "ViewsToReshapesReport": "views_to_reshapes",
}


def __getattr__(name: str) -> object:
    """What is asked for the first time is imported then: a program that is loaded needs few passes, and no graphs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_REPORTS.get(name, 'fx_api')}"), name)
    globals()[name] = found
    return found


class _Passes(ModuleType):
    """A package in which a function goes before the file of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Passes
