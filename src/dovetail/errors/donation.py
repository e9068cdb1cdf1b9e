"""Errors about donated inputs."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class BadDonation(DovetailError):
    """An input cannot be donated."""

    code = "DT-INPLACE-002"
    summary = "{donation!r} cannot be donated: {reason}."
    because = "donate names inputs by position or name: {known}"
    way_out = "correct donate, or leave this input out"
    rows = ()


class UnusableDonation(DovetailError):
    """A donated tensor cannot be overwritten."""

    code = "DT-INPLACE-003"
    summary = "{name} is donated, which this call does not allow: {reason}."
    because = "the program may overwrite donated memory, so nothing may read it after the call"
    way_out = "pass a copy (x.clone()), or leave it out of donate"
    rows = ()
