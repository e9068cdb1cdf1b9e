"""Splits of a graph as they are chosen between, and what one leaves for another backward."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dovetail.ir.program import Node, Phase, Program
from dovetail.ir.signature import Residual
from dovetail.ops.prims import REACHED
from dovetail.partition.choose import PartitionReport
from dovetail.partition.recompute import keeps_named, split_keeping
from dovetail.partition.split import Split
from dovetail.passes.dead_code import remove_dead_code

_HELD = "saved"


@dataclass(frozen=True, slots=True)
class Halves:
    """A split, and the joint program that it is of, in which nodes may run again already. report: of the choice."""

    joint: Program
    split: Split
    report: PartitionReport | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """solver: who found it. work: of what runs again."""

    halves: Halves
    solver: str
    peak_bytes: int
    work: int


def keeping(program: Program, kept: Collection[str]) -> Split:
    """The split in which forward saves values of these names."""
    return split_keeping(program, keeps_named(program, kept))


def stays_behind(first: Split, split: Split) -> frozenset[str]:
    """Residuals that are held until backward ends, for backwards of other outputs: what is not read, and sources.

    first: whose forward runs.
    """
    given = {role.name for role in first.forward.signature.outputs if isinstance(role, Residual)}
    read = {role.name for role in split.backward.signature.inputs if isinstance(role, Residual)}
    return frozenset((given - read) | {*first.sources})


def holding(program: Program, saved: Collection[str]) -> Program:
    """The program with readers of what forward saves: nothing of that is removed, and equal values are merged into it.

    A later backward reads fewer values than the first, and of equal ones not those that the first read.
    """
    values = [value for node in program.nodes for value in node.results() if value.is_tensor and value.name in saved]
    return program.replace_nodes((*program.nodes, *(Node(REACHED, (v, _HELD), phase=Phase.BACKWARD) for v in values)))


def released(program: Program) -> Program:
    """The program without the readers that `holding` has added, and what is computed for these alone."""
    kept = tuple(node for node in program.nodes if not (node.target is REACHED and node.args[1:] == (_HELD,)))
    return remove_dead_code(program.replace_nodes(kept))[0]
