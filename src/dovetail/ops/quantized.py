"""Primitives of products of 8-bit integers, whose operands are rounded to 255 levels row by row.

    scales = prims.ROW_SCALES(weight)                            # once, when a program is frozen
    few = prims.QUANTIZE_WEIGHT(weight, scales)
    sums = prims.WEIGHT_SUMS(few, scales)
    packed = prims.PACK_INT8(few, rows)                          # where the program runs; or PACK_INT8_PANELS
    r = prims.ROW_RANGES(x)                                      # in each call
    q = prims.QUANTIZE_ROWS(x, r)
    y = prims.int8_linear("gelu")(q, packed, r, scales, sums, bias)   # int8_panel_linear, for panels

A row of an input is `step * q + least`, with q from 0 to 255. A row of a weight is `scale * few`, with few from -127 to
127: zero stays zero. So a result is `step * scales * (q @ few.t()) + least * sums + bias`. No row depends on others.
Sums of products are exact, and rounded to float32 once.

Panels of 32 outputs are made where a program runs, and are in no file. One is (inputs / 4, 32, 4): four inputs of an
output lie side by side, as instructions for sums of 8-bit products read them. Machine code
(`execute.native.int8_rows`) multiplies by them; by itself the primitive runs oneDNN's product.

Source: Intel's architecture manual, VPDPBUSD; Goto and van de Geijn (2008), for panels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import applied, checked_activation
from dovetail.ops.panels import WIDTH
from dovetail.torch_compat import onednn, onednn_low_precision
from dovetail.torch_compat.fakes import is_fake

_LEVELS = 255.0
_LEVELS_OF_WEIGHTS = 127.0
_SMALLEST = 1e-30  # rows whose elements are equal have a step, too
_ELEMENTS_AT_ONCE = 1 << 16  # they stay in the cache, and take no memory worth speaking of


# --- weights ----------------------------------------------------------------------------------------------------------


def _row_scales(weight: torch.Tensor) -> torch.Tensor:
    return weight.abs().amax(1).clamp_min_(_SMALLEST).div_(_LEVELS_OF_WEIGHTS)


def _quantize_weight(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    levels = torch.div(weight, scales[:, None]).round_().clamp_(-_LEVELS_OF_WEIGHTS, _LEVELS_OF_WEIGHTS)
    return levels.to(torch.int8, memory_format=torch.contiguous_format)


def _weight_sums(levels: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return levels.sum(1, dtype=torch.int64).to(torch.float64).mul_(scales).to(torch.float32)


def _pack_int8(weight: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    if weight.dtype is not torch.int8 or weight.dim() != 2:
        raise ValueError(f"weights of {weight.dim()} dimensions of {weight.dtype} are not packed")
    if is_fake(weight) or weight.is_meta:
        return weight.new_empty((weight.shape[1], weight.shape[0]))  # as oneDNN shows it
    return onednn_low_precision.pack_int8_weight(weight, rows)


# Of a matrix: (rows,) of float32, positive; NaN or infinite for a row that has such numbers.
ROW_SCALES = Prim("row_scales", _row_scales, "prims.ROW_SCALES")
# Of a matrix and its scales: int8, contiguous.
QUANTIZE_WEIGHT = Prim("quantize_weight", _quantize_weight, "prims.QUANTIZE_WEIGHT")
# Of an int8 matrix and its scales: the sum of each row of the weight that they stand for, float32.
WEIGHT_SUMS = Prim("weight_sums", _weight_sums, "prims.WEIGHT_SUMS")
PACK_INT8 = Prim("pack_int8", _pack_int8, "prims.PACK_INT8")


# --- inputs -----------------------------------------------------------------------------------------------------------


def _row_ranges(x: torch.Tensor) -> torch.Tensor:
    least = x.amin(-1)
    step = x.amax(-1).sub_(least).clamp_min_(_SMALLEST).div_(_LEVELS)
    return torch.stack((step, least), -1)


def _quantize_rows(x: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    step, least = ranges.split(1, -1)
    factors = step.reciprocal()
    if is_fake(x) or x.is_meta or x.numel() <= _ELEMENTS_AT_ONCE:
        return _levels_of(x, factors, least)
    made = torch.empty(x.shape, dtype=torch.uint8)
    given, levels = x.flatten(0, -2), made.flatten(0, -2)
    factors, least = factors.flatten(0, -2), least.flatten(0, -2)
    for part in _blocks(given):
        levels[part] = _levels_of(given[part], factors[part], least[part])
    return made


def _levels_of(x: torch.Tensor, factors: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    shifted = torch.sub(x, least).mul_(factors).add_(0.5)  # at most 255.5 and a bit; the fraction is cut off
    return shifted.to(torch.uint8, memory_format=torch.contiguous_format)


def _blocks(x: torch.Tensor) -> Iterator[slice]:
    """Rows of a matrix, some at a time."""
    rows = max(1, _ELEMENTS_AT_ONCE // max(1, x.shape[1]))
    return (slice(first, first + rows) for first in range(0, x.shape[0], rows))


# Of (..., inputs): (..., 2) of float32, the distance of levels and the least number of each row.
ROW_RANGES = Prim("row_ranges", _row_ranges, "prims.ROW_RANGES")
# Of a tensor and its ranges: uint8, contiguous.
QUANTIZE_ROWS = Prim("quantize_rows", _quantize_rows, "prims.QUANTIZE_ROWS")


# --- products ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """`activation(step * scales * (x @ weight.t()) + least * sums + bias)`, (..., outputs) of float32.

    x: levels (..., inputs) of uint8. weight: (outputs, inputs) of int8, packed; a plain one is packed in each call.
    ranges: step and least number of each row of the input. scales, sums: of rows of the weight.
    """

    activation: str

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        ranges: torch.Tensor,
        scales: torch.Tensor,
        sums: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        _check(x, weight, scales)
        if is_fake(x) or x.is_meta:
            return ranges.new_empty((*x.shape[:-1], scales.shape[0]))
        rows, ranges = x.contiguous().view(-1, x.shape[-1]), ranges.reshape(-1, 2)
        if not onednn.is_packed(weight):
            weight = onednn_low_precision.pack_int8_weight(weight, rows.shape[0])
        made = onednn_low_precision.int8_product(rows, weight, scales)
        step, least = ranges.split(1, -1)
        middle = torch.add(least, step, alpha=onednn_low_precision.ZERO_POINT)
        if made.numel() <= _ELEMENTS_AT_ONCE:
            self._finish(made, step, middle, sums, bias)
        else:
            for part in _blocks(made):
                self._finish(made[part], step[part], middle[part], sums, bias)
        return made.view(*x.shape[:-1], made.shape[1])

    def _finish(
        self,
        made: torch.Tensor,
        step: torch.Tensor,
        middle: torch.Tensor,
        sums: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        rest = middle * sums if bias is None else torch.addcmul(bias, middle, sums)
        torch.addcmul(rest, made, step, out=made)
        applied(self.activation, made)


def _check(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> None:
    """Raise ValueError unless the kernel reads what there is: it does not look itself."""
    size = tuple(weight.shape)
    has_no_data = is_fake(weight) or weight.is_meta
    if onednn.is_packed(weight) or (has_no_data and size != (scales.numel(), x.shape[-1])):
        size = size[::-1]
    dtypes = (x.dtype, weight.dtype, scales.dtype)
    if dtypes != (torch.uint8, torch.int8, torch.float32):
        raise ValueError(f"products of 8-bit integers do not take {dtypes}")
    if x.dim() < 1 or size != (scales.numel(), x.shape[-1]) or not scales.is_contiguous():
        raise ValueError(f"a product of {tuple(x.shape)} by {size} does not take {scales.numel()} scales")


@cache
def int8_linear(activation: str) -> Prim:
    """The primitive `(x, packed, ranges, scales, sums, bias=None)`; see `Int8Linear`.

    activation: of `ops.packed.ACTIVATIONS`. Raises: ValueError for an unknown activation.
    """
    name = "int8_linear" if activation == "none" else f"int8_linear_{activation}"
    return Prim(name, Int8Linear(checked_activation(activation)), f"prims.int8_linear({activation!r})")


def computes_in_int8(target: object) -> bool:
    """Whether a primitive multiplies 8-bit integers, which not every processor does as it should."""
    return isinstance(target, Prim) and isinstance(target.run, Int8Linear)


# --- panels -----------------------------------------------------------------------------------------------------------


GROUP = 4
"""Inputs whose products are summed by one instruction: weights have a multiple of so many."""


def int8_panels_shape(outputs: int, inputs: int) -> tuple[int, int, int, int]:
    """The shape of the panels of a weight."""
    return -(-outputs // WIDTH), inputs // GROUP, WIDTH, GROUP


def _pack_int8_panels(weight: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    outputs, inputs = weight.shape
    if weight.dtype is not torch.int8 or inputs % GROUP:
        raise ValueError(f"weights of {inputs} inputs of {weight.dtype} are not laid out in panels of int8")
    made = weight.new_zeros(int8_panels_shape(outputs, inputs))
    if is_fake(weight) or weight.is_meta:
        return made
    whole, groups = outputs // WIDTH, inputs // GROUP
    given, words = weight.contiguous().view(torch.int32), made.view(torch.int32).squeeze(-1)  # a group is one word
    words[:whole].copy_(given[: whole * WIDTH].view(whole, WIDTH, groups).transpose(1, 2))
    if outputs % WIDTH:
        words[whole, :, : outputs % WIDTH].copy_(given[whole * WIDTH :].t())
    return made


# rows: how many the input is expected to have; panels are the same for any number.
PACK_INT8_PANELS = Prim("pack_int8_panels", _pack_int8_panels, "prims.PACK_INT8_PANELS")


def plain_levels(panels: torch.Tensor, outputs: int) -> torch.Tensor:
    """The weight (outputs, inputs) that panels hold."""
    return panels.permute(0, 2, 1, 3).reshape(panels.shape[0] * WIDTH, -1)[:outputs].contiguous()


@dataclass(frozen=True, slots=True)
class Int8PanelLinear:
    """See `Int8Linear`, for a weight in panels."""

    activation: str

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        ranges: torch.Tensor,
        scales: torch.Tensor,
        sums: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        check_int8_panels(x, weight, ranges, scales, sums, bias)
        if is_fake(x) or x.is_meta:
            return ranges.new_empty((*x.shape[:-1], scales.shape[0]))
        plain = plain_levels(weight, scales.shape[0])
        return Int8Linear(self.activation)(x, plain, ranges, scales, sums, bias)


def check_int8_panels(
    x: torch.Tensor,
    weight: torch.Tensor,
    ranges: torch.Tensor,
    scales: torch.Tensor,
    sums: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """Raise ValueError unless machine code reads what there is: it does not look itself."""
    outputs, inputs = scales.numel(), x.shape[-1] if x.dim() else 0
    if x.dtype is not torch.uint8 or weight.dtype is not torch.int8:
        raise ValueError(f"products of 8-bit integers do not take {x.dtype} and {weight.dtype}")
    if weight.shape != int8_panels_shape(outputs, inputs) or inputs % GROUP or ranges.shape != (*x.shape[:-1], 2):
        raise ValueError(f"{tuple(x.shape)} is not multiplied by {tuple(weight.shape)} for {outputs} outputs")
    vectors = [scales, sums, *([] if bias is None else [bias])]
    if any(each.shape != (outputs,) or each.dtype is not torch.float32 for each in vectors):
        raise ValueError(f"a product of {outputs} outputs takes as many scales, sums and biases of float32")


@cache
def int8_panel_linear(activation: str) -> Prim:
    """The primitive `(q, panels, ranges, scales, sums, bias=None)`; see `Int8PanelLinear`.

    activation: of `ops.packed.ACTIVATIONS`. Raises: ValueError for an unknown activation.
    """
    name = "int8_panel_linear" if activation == "none" else f"int8_panel_linear_{activation}"
    return Prim(name, Int8PanelLinear(checked_activation(activation)), f"prims.int8_panel_linear({activation!r})")
