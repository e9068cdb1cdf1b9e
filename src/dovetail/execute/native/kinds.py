"""The kinds of rows that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.execute.native.attention_rows import AttentionClaim, attention_claim, attention_row
from dovetail.execute.native.blocked_products import BlockedClaim, blocked_claim, blocked_row
from dovetail.execute.native.casts import CastClaim, cast_claim, cast_row
from dovetail.execute.native.channel_parts import ChannelPartsClaim, channel_parts_claim, channel_parts_row
from dovetail.execute.native.claims import Claim, claim_of
from dovetail.execute.native.column_sums import ColumnSumClaim, column_sum_claim, column_sum_row
from dovetail.execute.native.convolution_rows import ConvolutionClaim, convolution_claim, convolution_row
from dovetail.execute.native.copies import CopyClaim, copy_claim, copy_row
from dovetail.execute.native.group_norms import GroupNormClaim, group_norm_claim, group_norm_row
from dovetail.execute.native.index_copies import IndexCopyClaim, index_copy_claim, index_copy_row
from dovetail.execute.native.int8_rows import Int8Claim, int8_claim, int8_row
from dovetail.execute.native.kernels import KernelClaim, kernel_claim, kernel_row
from dovetail.execute.native.loop_rows import loop_row
from dovetail.execute.native.max_pools import MaxPoolClaim, max_pool_claim, max_pool_row
from dovetail.execute.native.norms import NormClaim, norm_claim, norm_row
from dovetail.execute.native.panel_rows import PanelClaim, panel_claim, panel_row
from dovetail.execute.native.pixel_means import PixelMeanClaim, pixel_mean_claim, pixel_mean_row
from dovetail.execute.native.plane_convolutions import PlaneClaim, plane_claim, plane_row
from dovetail.execute.native.products import (
    ProductClaim,
    SmallProductClaim,
    product_claim,
    product_row,
    small_product_claim,
    small_product_row,
)
from dovetail.execute.native.recurrent_rows import RecurrentClaim, recurrent_claim, recurrent_row
from dovetail.execute.native.rounding import RoundingClaim, rounding_claim
from dovetail.execute.native.row_copies import RowCopyClaim, row_copy_claim
from dovetail.execute.native.row_functions import RowFunctionClaim, row_function_claim
from dovetail.execute.native.row_loop import Rows
from dovetail.execute.native.row_loops import row_of_rows
from dovetail.execute.native.rows import Addresses, ReadyRow, RowClaim, Storages
from dovetail.execute.native.sums import SumClaim, sum_claim, sum_row
from dovetail.ir.program import Node


@dataclass(frozen=True, slots=True)
class RowKind:
    """claim_of: the claim on a node, as far as descriptions say; None where it is of another kind. row_of: the row of
    claims, given the storages in which what is written is not read later; None where there is none to run. Those of
    rows of a matrix have none of their own. alone: what a call of the node by itself costs besides (`native.costs`).
    rounds: whether results differ by rounding.
    """

    claim_of: Callable[[Node], RowClaim | None]
    row_of: Callable[[Sequence[Any], Storages, Addresses], ReadyRow | None] | None = None
    alone: float = 0.0
    rounds: bool = False


KINDS: dict[type, RowKind] = {
    RowFunctionClaim: RowKind(row_function_claim, rounds=True),
    RowCopyClaim: RowKind(row_copy_claim, rounds=True),
    RoundingClaim: RowKind(rounding_claim, loop_row, rounds=True),
    ColumnSumClaim: RowKind(column_sum_claim, column_sum_row, rounds=True),
    BlockedClaim: RowKind(blocked_claim, blocked_row, alone=3.0, rounds=True),
    SmallProductClaim: RowKind(small_product_claim, small_product_row, rounds=True),
    KernelClaim: RowKind(kernel_claim, kernel_row),
    Claim: RowKind(claim_of, loop_row),
    ProductClaim: RowKind(product_claim, product_row),
    SumClaim: RowKind(sum_claim, sum_row),
    NormClaim: RowKind(norm_claim, norm_row),
    CopyClaim: RowKind(copy_claim, copy_row),
    IndexCopyClaim: RowKind(index_copy_claim, index_copy_row),
    CastClaim: RowKind(cast_claim, cast_row),
    PanelClaim: RowKind(panel_claim, panel_row, alone=2.5),
    Int8Claim: RowKind(int8_claim, int8_row, alone=4.0),
    RecurrentClaim: RowKind(recurrent_claim, recurrent_row, alone=12.0),
    ConvolutionClaim: RowKind(convolution_claim, convolution_row, alone=4.0),
    PixelMeanClaim: RowKind(pixel_mean_claim, pixel_mean_row, alone=4.0),
    AttentionClaim: RowKind(attention_claim, attention_row, alone=12.0),
    ChannelPartsClaim: RowKind(channel_parts_claim, channel_parts_row, alone=30.0),
    MaxPoolClaim: RowKind(max_pool_claim, max_pool_row, alone=30.0),
    GroupNormClaim: RowKind(group_norm_claim, group_norm_row, alone=6.0),
    PlaneClaim: RowKind(plane_claim, plane_row, alone=60.0, rounds=True),
}
"""By the type of their claims."""


def claim_on(node: Node, *, rounds: bool = False) -> RowClaim | None:
    """The claim on a node, as far as descriptions say. rounds: whether its results may differ by rounding."""
    kinds = (kind for kind in KINDS.values() if rounds or not kind.rounds)
    return next((claim for kind in kinds if (claim := kind.claim_of(node)) is not None), None)


def row_of(
    claims: Sequence[RowClaim], storages: Storages, addresses: Addresses, rows: Rows | None = None
) -> ReadyRow | None:
    """The row of claims of one kind, or of those that share a loop over the rows of a matrix: see `RowKind`."""
    if rows is not None:
        return row_of_rows(claims, rows, storages, addresses)
    row_of_kind = KINDS[type(claims[0])].row_of
    assert row_of_kind is not None, "functions of rows are arranged with their matrix"
    return row_of_kind(claims, storages, addresses)
