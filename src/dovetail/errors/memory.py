"""Errors of planning memory."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class InvalidPlacement(DovetailError):
    """Buffers do not lie in an arena as they must: a bug in a solver, or fixed offsets that cannot be kept."""

    code = "DT-INTERNAL-004"
    summary = "the arena of {program} breaks a rule: {rule}."
    because = "{detail}"
    way_out = "give fixed offsets that leave room for each other; where none were given, this is a bug in dovetail"
    rows = ()
