"""Errors about constants: tensors that a program holds while it is in use."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class FoldedOtherwise(DovetailError):
    """Computing a value once gave a tensor that the program describes otherwise."""

    code = "DT-INTERNAL-003"
    summary = "{value} was computed once and is {found}, but the program says {expected}."
    because = "a stored value takes the place of one whose shape, strides, dtype and device other nodes rely on"
    way_out = "this is a bug in dovetail, or in the fake kernel of {node}: report it with the program"
    rows = ("node", "origin")
