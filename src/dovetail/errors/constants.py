"""Errors about constants: the tensors that a program holds."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class FoldedOtherwise(DovetailError):
    """A folded constant does not match the value that it replaces."""

    code = "DT-INTERNAL-003"
    summary = "folding {value} gave {found}, but the program says {expected}."
    because = "other nodes rely on the shape, strides, dtype and device of the value that the constant replaces"
    way_out = "this is a bug in dovetail or in the fake kernel of {node}: please report it with the program"
    rows = ("node", "origin")
