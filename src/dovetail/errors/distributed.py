"""Errors about programs of several processes."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class UnsupportedDistributed(DovetailError):
    """The code does something with other processes that a program cannot repeat."""

    code = "DT-DIST-001"
    summary = "{what}."
    because = "{why}"
    way_out = "{hint}"
    rows = ("origin",)


class CollectivesDiffer(DovetailError):
    """The ranks of a process group have programs with different collectives."""

    code = "DT-DIST-002"
    summary = "the ranks of process group {group!r} are about to run different collectives: {differences}."
    because = "each would wait for the others forever"
    way_out = "let every rank of the group call the same collectives, in the same order, with equal shapes"
    rows = ("origin",)


class CollectiveFailed(DovetailError):
    """A collective failed: another rank has died, raised, or taken too long."""

    code = "DT-DIST-003"
    summary = "{operator} in process group {group!r} failed."
    because = "{error}"
    way_out = "look at the other ranks: one of them has ended, or raised first; then start all of them again"
    rows = ("origin",)


class RankFailed(DovetailError):
    """A rank has raised, and lives on, while others wait for it."""

    code = "DT-DIST-005"
    summary = "rank {rank} of process group {group!r} has raised, and its collectives and messages will not come."
    because = "it {error}"
    way_out = "see what that rank has raised; then start all of them again"
    rows = ("origin",)


class ModuleToPrepare(DovetailError):
    """A module of data parallel training has not been called as often as it needs to be captured."""

    code = "DT-DIST-004"
    summary = "{name} is not ready to be captured yet."
    because = "{why}"
    way_out = "call the step: compile_step runs these calls in eager mode"
    rows = ("origin",)
