"""Errors about making a failing program smaller."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class DoesNotFail(DovetailError):
    """A program was to be made smaller while it fails, and it does not fail."""

    code = "DT-MINIFY-001"
    summary = "program {program} does not fail: the check finds nothing wrong with it."
    because = "only a program that fails can be made smaller such that it still fails"
    way_out = "give the inputs it fails for, and a check that sees the failure (`compiles` does not look at results)"
    rows = ()


class FlakyFailure(DovetailError):
    """A failing program was checked a second time, and did not fail, or failed otherwise."""

    code = "DT-MINIFY-002"
    summary = "program {program} does not fail each time in the same way: first {first}, then {second}."
    because = "every smaller program would be kept or dropped by chance"
    way_out = "make the check repeatable: fix its seed, its threads, or compare with a tolerance"
    rows = ()


class OtherSearch(DovetailError):
    """A file of verdicts belongs to another program, other inputs, or another check."""

    code = "DT-MINIFY-003"
    summary = "{path} keeps the verdicts of another search: {what} is not the same."
    because = "its answers would be taken for those of this program"
    way_out = "give another file, or delete this one"
    rows = ()


class BadCheck(DovetailError):
    """A check that decides whether a program fails cannot be used."""

    code = "DT-MINIFY-004"
    summary = "the check {check} cannot be used: {reason}."
    because = "a check is a function of a graph module and its inputs, which raises where the program fails"
    way_out = "name it as FILE:FUNCTION, check.py:fails, or use one of the built-in ones: {known}"
    rows = ()


class OutputInTheWay(DovetailError):
    """A folder to be written is there already."""

    code = "DT-MINIFY-005"
    summary = "{path} exists already."
    because = "a reproducer is written to a folder of its own, and nothing is written over"
    way_out = "name a folder that does not exist"
    rows = ()
