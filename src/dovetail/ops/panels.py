"""Primitives of products by weights in panels: columns of 32 outputs side by side, in the order in which they are read.

    panels = prims.PACK_PANELS(weight)                           # (outputs, inputs), once, where a program runs
    y = prims.panel_linear("relu")(x, panels, outputs, bias)     # relu(x @ weight.t() + bias)

A panel is (inputs, 32); outputs that do not fill the last one are zeros there. Panels are plain tensors of float32.
Machine code multiplies by them (`execute.native.panels`); by itself the primitive runs torch's operators, and takes a
plain weight as well.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import applied, checked_activation
from dovetail.torch_compat.fakes import is_fake

WIDTH = 32
"""Outputs of a panel."""

_MATRIX, _PANELS = 2, 3


def _pack_panels(weight: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    if weight.dtype is not torch.float32 or weight.dim() != _MATRIX:
        raise ValueError(f"weights of {weight.dim()} dimensions of {weight.dtype} are not laid out in panels")
    outputs, inputs = weight.shape
    made = weight.new_zeros(panels_shape(outputs, inputs))
    if is_fake(weight) or weight.is_meta:
        return made
    whole = outputs // WIDTH
    made[:whole].copy_(weight[: whole * WIDTH].view(whole, WIDTH, inputs).transpose(1, 2))
    if outputs % WIDTH:
        made[whole, :, : outputs % WIDTH].copy_(weight[whole * WIDTH :].t())
    return made


# rows: how many the input is expected to have; panels are the same for any number.
PACK_PANELS = Prim("pack_panels", _pack_panels, "prims.PACK_PANELS")


def panels_shape(outputs: int, inputs: int) -> tuple[int, int, int]:
    """The shape of the panels of a weight."""
    return -(-outputs // WIDTH), inputs, WIDTH


def plain_weight(panels: torch.Tensor, outputs: int) -> torch.Tensor:
    """The weight (outputs, inputs) that panels hold, each bit of it; contiguous."""
    count, inputs, _ = panels.shape
    return panels.transpose(1, 2).reshape(count * WIDTH, inputs)[:outputs]


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """`activation(x @ weight.t() + bias)`, contiguous, for a weight in panels and any leading sizes of `x`."""

    activation: str

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, outputs: int, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        check_panels(x, weight, outputs, bias)
        if is_fake(x) or x.is_meta:
            return x.new_empty((*x.shape[:-1], outputs))
        if weight.dim() != _PANELS:
            return applied(self.activation, torch.nn.functional.linear(x.contiguous(), weight, bias))
        made = x.new_empty((*x.shape[:-1], outputs))
        for panel, part in zip(weight, made.split(WIDTH, -1), strict=True):  # takes no more than machine code
            part.copy_(x @ panel[:, : part.shape[-1]])
        return applied(self.activation, made if bias is None else made.add_(bias))


def check_panels(x: torch.Tensor, weight: torch.Tensor, outputs: int, bias: torch.Tensor | None) -> None:
    """Raise ValueError unless machine code reads what there is: it does not look itself."""
    inputs = x.shape[-1] if x.dim() else 0
    expected = panels_shape(outputs, inputs) if weight.dim() == _PANELS else (outputs, inputs)
    if weight.shape != expected or outputs < 1 or x.dim() < _MATRIX:
        raise ValueError(f"{tuple(x.shape)} is not multiplied by {tuple(weight.shape)} for {outputs} outputs")
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"a bias of {tuple(bias.shape)} is not one of {outputs} outputs")
    if any(each.dtype is not torch.float32 for each in (x, weight, *([] if bias is None else [bias]))):
        raise ValueError("products by panels are of float32")


@cache
def panel_linear(activation: str) -> Prim:
    """The primitive `(x, panels, outputs, bias=None)`; see `PanelLinear`. activation: of `ops.packed.ACTIVATIONS`.

    Raises: ValueError for an unknown activation.
    """
    name = "panel_linear" if activation == "none" else f"panel_linear_{activation}"
    return Prim(name, PanelLinear(checked_activation(activation)), f"prims.panel_linear({activation!r})")
