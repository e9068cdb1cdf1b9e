"""Operators and the layout of what they read: who follows it, who minds it.

Strides of results are found by running an operator on fake tensors. For some operators and layouts these are not the
strides that its kernel gives (`roll` and `channel_shuffle` of an image with the channels last, in torch 2.13), so that
an operator may only be given another layout than it was recorded with if it is known that fakes tell the truth: for
views and pointwise operators, which share one way to find strides, and for those named here, each of which is
compared with its kernel by a test. Another operator is given what it was recorded with, by a copy if need be.
"""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

import torch

from dovetail.ir.program import Node, Target
from dovetail.ops.facts import facts_of, writes_of
from dovetail.ops.packing import takes_packed
from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of

FOLLOWING = frozenset(
    {
        # convolution and what stands between convolutions
        "convolution",
        "native_batch_norm",
        "_native_batch_norm_legit_no_training",
        "native_group_norm",
        "native_layer_norm",
        "max_pool2d_with_indices",
        "avg_pool2d",
        "_adaptive_avg_pool2d",
        "adaptive_max_pool2d",
        "max_pool3d_with_indices",
        "avg_pool3d",
        "upsample_nearest2d",
        "_upsample_nearest_exact2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "constant_pad_nd",
        "reflection_pad2d",
        "replication_pad2d",
        "pixel_shuffle",
        "pixel_unshuffle",
        "grid_sampler_2d",
        "glu",
        "_prelu_kernel",
        # what joins and repeats
        "cat",
        "stack",
        "repeat",
        "flip",
        "index_select",
        "slice_scatter",
        # what reduces
        "mean",
        "sum",
        "amax",
        "amin",
        "max",
        "argmax",
        "var_mean",
        "linalg_vector_norm",
        "cumsum",
        "_softmax",
        "_log_softmax",
        "topk",
        # products
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        # what copies and makes
        "clone",
        "_to_copy",
        "reshape",
        "contiguous",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
    }
)

# They name strides, or places in the storage, of their operand.
_ABSOLUTE = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "_reshape_alias", "_reshape_alias_copy"})
_RESHAPING_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})


def may_follow_layout(node: Node) -> bool:
    """Whether a node may run on operands that have a different layout than recorded, and fakes tell what it then gives.

    Random numbers are drawn in the order of memory, and what torch does not know may read memory as it likes.
    """
    if takes_packed(node.target):
        return True
    if not _is_aten(node.target) or is_absolute(node) or writes_of(node):
        return False
    facts = facts_of(node.target)
    return facts.is_pure and (_strides_are_known(node.target) or _is_view(node))


@cache
def _strides_are_known(target: Overload) -> bool:
    return torch.Tag.pointwise in tags_of(target) or schema_of(target).name in FOLLOWING


def _is_view(node: Node) -> bool:
    held = {value.tensor.storage for value in node.operands() if value.is_tensor}
    return bool(node.results()) and all(value.is_tensor and value.tensor.storage in held for value in node.results())


def is_absolute(node: Node) -> bool:
    """Whether an operator's arguments name strides of its operand, or places in the storage of that."""
    return isinstance(node.target, Overload) and schema_of(node.target).name.rstrip("_") in _ABSOLUTE


def is_reshaping_view(node: Node) -> bool:
    """Whether a node shows its operand in another shape, which not every layout allows."""
    return node.target in _RESHAPING_VIEWS


def _is_aten(target: Target) -> TypeGuard[Overload]:
    return isinstance(target, Overload) and schema_of(target).namespace == "aten"
