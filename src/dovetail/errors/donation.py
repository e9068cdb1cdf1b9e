"""Mistakes about what is given away."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class BadDonation(DovetailError):
    """An input cannot be donated."""

    code = "DT-INPLACE-002"
    summary = "{donation!r} cannot be donated: {reason}."
    because = "donate names inputs by position or name: {known}"
    way_out = "correct donate, or leave the input out"
    rows = ()


class UnusableDonation(DovetailError):
    """A tensor that a call gives away cannot be written over."""

    code = "DT-INPLACE-003"
    summary = "{name} is donated and cannot be given away in this call: {reason}."
    because = "the program may write over what is donated, and nobody may look at that memory afterwards"
    way_out = "pass a copy of it (x.clone()), or leave it out of donate"
    rows = ()
