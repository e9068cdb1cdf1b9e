"""Errors about options."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class UnknownOption(DovetailError):
    """An option name that does not exist."""

    code = "DT-OPTION-001"
    summary = "there is no option {option!r}."
    because = "known options: {known}"
    way_out = "{suggestion}"
    rows = ()


class BadOptionValue(DovetailError):
    """An option was given a value of the wrong type or range."""

    code = "DT-OPTION-002"
    summary = "option {option!r} cannot be {value!r}."
    because = "{reason}"
    way_out = "give {expected}"
    rows = ()


class NotYetSupported(DovetailError):
    """A documented feature that is not implemented yet."""

    code = "DT-OPTION-003"
    summary = "{feature} is not supported yet."
    because = "{reason}"
    way_out = "{hint}"
