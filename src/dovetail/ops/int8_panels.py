"""Primitives of products of 8-bit integers by weights that machine code reads in order: panels of 32 outputs.

    panels = prims.PACK_INT8_PANELS(few, rows)                   # (outputs, inputs) of int8, once, where a program runs
    y = prims.int8_panel_linear("gelu")(q, panels, ranges, scales, sums, bias)

They are made of `prims.PACK_INT8` and `prims.int8_linear` where a program runs, and are in no file. A panel is
(inputs / 4, 32, 4): four inputs of an output lie side by side, as instructions for sums of 8-bit products read them.
Machine code (`execute.native.int8_rows`) multiplies by them; by itself the primitive runs oneDNN's product.

Source: Intel's architecture manual, VPDPBUSD; Goto and van de Geijn (2008), for panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import checked_activation
from dovetail.ops.panels import WIDTH
from dovetail.ops.quantized import Int8Linear
from dovetail.torch_compat.fakes import is_fake

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
    """See `ops.quantized.Int8Linear`, for a weight in panels."""

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
