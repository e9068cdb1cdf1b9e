"""The passes. On `torch.fx.GraphModule`s: a function and its `plan_` for each name here; on programs: one file each."""

from __future__ import annotations

from dovetail.passes.channels_last import ChannelsLastReport
from dovetail.passes.inplace_report import InplaceReport
from dovetail.passes.layout_shelf import (
    channels_last,
    plan_channels_last,
    plan_prepack,
    plan_views_to_reshapes,
    prepack,
    views_to_reshapes,
)
from dovetail.passes.prepack import PrepackReport
from dovetail.passes.shelf import plan_inplace, reinplace, verify_inplace
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport

__all__ = [
    "ChannelsLastReport",
    "InplaceReport",
    "PrepackReport",
    "ViewsToReshapesReport",
    "channels_last",
    "plan_channels_last",
    "plan_inplace",
    "plan_prepack",
    "plan_views_to_reshapes",
    "prepack",
    "reinplace",
    "verify_inplace",
    "views_to_reshapes",
]
