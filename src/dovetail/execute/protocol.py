"""What an executor is: something that claims nodes and says how to call them; and what a program is that can run.

Executors stand in a list. Each node goes to the first one that claims it; the last one, `aten`, claims everything, so
every program runs. A claim is text: the call expression that the generated source contains, over names that the claim
may add. Who runs what is part of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dovetail.ir.program import Node, Program
from dovetail.ir.text import Names


class RunnableProgram(Protocol):
    """A program with code for it: `execute.compiled` generates it, `execute.foreign` lets somebody else make it."""

    @property
    def program(self) -> Program:
        """What runs."""

    @property
    def source(self) -> str:
        """What runs, as text."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run. inputs: one per program input, in order; emptied."""


@runtime_checkable
class Executor(Protocol):
    """Claims nodes of a program."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    def claim(self, node: Node) -> bool:
        """Whether this executor runs the node with the same result as eager."""

    def call(self, names: Names, node: Node) -> str:
        """The call expression of a claimed node."""


@dataclass(frozen=True, slots=True)
class ExecutorList:
    """Executors in order of preference; the last one claims everything."""

    executors: tuple[Executor, ...]

    def owner(self, node: Node) -> Executor:
        """The first executor that claims the node."""
        return next(executor for executor in self.executors if executor.claim(node))

    def call(self, names: Names, node: Node) -> str:
        """The call expression of a node, by its owner."""
        return self.owner(node).call(names, node)
