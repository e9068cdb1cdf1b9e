"""What an executor is: something that claims nodes and says how to call them; and what a program is that can run.

Executors stand in a list. Each node goes to the first one that claims it; the last one, `aten`, claims everything, so
every program runs. A claim is text: the call expression that the generated source contains, over names that the claim
may add. Who runs what is part of the report.

An executor that runs several nodes by one call is bound to a program first, and then has groups of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from dovetail.ir.node_groups import NodeGroup
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


@runtime_checkable
class GroupingExecutor(Executor, Protocol):
    """Claims nodes where they stand together. It claims nothing before it is bound to a program."""

    @property
    def groups(self) -> Mapping[int, NodeGroup]:
        """The groups of the program that it is bound to, by the number of their first nodes."""

    def bound_to(
        self, program: Program, is_free: Callable[[Node], bool], dying: Collection[int] | None
    ) -> GroupingExecutor:
        """The executor for a program. is_free: whether a node may be part of a group; asked before this returns. dying:
        numbers of inputs that nobody else holds; None if it may be any.
        """


@dataclass(frozen=True, slots=True)
class ExecutorList:
    """Executors in order of preference; the last one claims everything. groups: of the program they are bound to."""

    executors: tuple[Executor, ...]
    groups: Mapping[int, NodeGroup] = field(default_factory=dict)

    def bound_to(
        self, program: Program, alone: Collection[Node] = (), dying: Collection[int] | None = None
    ) -> ExecutorList:
        """The executors for a program; themselves where none of them groups nodes. alone: nodes of no group. dying: see
        `GroupingExecutor`.
        """
        if not any(isinstance(executor, GroupingExecutor) for executor in self.executors):
            return self
        bound: list[Executor] = []
        groups: dict[int, NodeGroup] = {}

        def is_free(node: Node) -> bool:
            return node not in alone and not any(executor.claim(node) for executor in bound)

        for executor in self.executors:
            if isinstance(executor, GroupingExecutor):
                executor = executor.bound_to(program, is_free, dying)
                groups.update(executor.groups)
            bound.append(executor)
        return ExecutorList(tuple(bound), groups)

    def made_for_speed(self) -> ExecutorList:
        """The same for programs of which only calls count, not how long it takes until the first one."""
        return self._where_offered("made_for_speed")

    def with_rounding(self) -> ExecutorList:
        """The same where results may differ from eager's by rounding."""
        return self._where_offered("with_rounding")

    def _where_offered(self, method: str) -> ExecutorList:
        """The same with what a method gives in place of each executor that has it."""
        found = [getattr(executor, method, None) for executor in self.executors]
        made = [old if new is None else new() for old, new in zip(self.executors, found, strict=True)]
        return ExecutorList(tuple(made), self.groups)

    def multiplies_panels(self) -> bool:
        """Whether one of them has a kernel for products by weights in panels, as far as it claims nodes one by one."""
        return any(getattr(executor, "multiplies_panels", False) for executor in self.executors)

    def multiplies_int8_panels(self) -> bool:
        """Whether one of them has a kernel for products of 8-bit integers by panels, and the processor has one."""
        return any(getattr(executor, "multiplies_int8_panels", False) for executor in self.executors)

    def owner(self, node: Node) -> Executor:
        """The first executor that claims the node."""
        return next(executor for executor in self.executors if executor.claim(node))

    def call(self, names: Names, node: Node) -> str:
        """The call expression of a node, by its owner."""
        return self.owner(node).call(names, node)
