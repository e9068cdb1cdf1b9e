"""Errors about minifying a failing program."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class DoesNotFail(DovetailError):
    """A program to be minified does not fail."""

    code = "DT-MINIFY-001"
    summary = "program {program} does not fail: the check finds nothing wrong with it."
    because = "only a failing program can be minified"
    way_out = "pass the inputs it fails for, and a check that sees the failure (`compiles` does not look at results)"
    rows = ()


class FlakyFailure(DovetailError):
    """A failing program passed its second check, or failed differently."""

    code = "DT-MINIFY-002"
    summary = "program {program} does not fail the same way each time: first {first}, then {second}."
    because = "chance would decide which smaller programs are kept"
    way_out = "make the check repeatable: fix its seed, its threads, or compare with a tolerance"
    rows = ()


class OtherSearch(DovetailError):
    """A file of verdicts belongs to another program, other inputs or another check."""

    code = "DT-MINIFY-003"
    summary = "{path} holds the verdicts of another search: {what} is not the same."
    because = "its verdicts would be taken for those of this program"
    way_out = "name another file, or delete this one"
    rows = ()


class BadCheck(DovetailError):
    """A check, the function that decides whether a program fails, cannot be used."""

    code = "DT-MINIFY-004"
    summary = "the check {check} cannot be used: {reason}."
    because = "a check is a function of a graph module and its inputs that raises if the program fails"
    way_out = "name it as FILE:FUNCTION, e.g. check.py:fails, or use a built-in one: {known}"
    rows = ()


class OutputInTheWay(DovetailError):
    """The output folder already exists."""

    code = "DT-MINIFY-005"
    summary = "{path} already exists."
    because = "a reproducer is written to a new folder, and nothing is overwritten"
    way_out = "name a folder that does not exist"
    rows = ()
