"""The executor for programs from files: it checks operands that torch's kernels would trust, then calls them.

It stands first in the list of executors, and claims those calls alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from dovetail.execute.protocol import ExecutorList
from dovetail.ir.node_groups import NodeGroup
from dovetail.ir.program import Node, Program, meta_symbols
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ir.text import Names, plain_call
from dovetail.ops.described_operands import holds_by_description
from dovetail.ops.preconditions import checked


class CheckedExecutor:
    """Claims the calls of kernels that trust their operands. See `execute.protocol.GroupingExecutor`."""

    name = "checked"
    groups: Mapping[int, NodeGroup] = MappingProxyType({})

    def __init__(self, *, is_described: bool = False, known: Collection[Node] = ()) -> None:
        """is_described: whether the descriptions of programs without symbols are known to be true. known: nodes whose
        operands are known to be what their targets trust them to be.
        """
        self._is_described = is_described
        self._known = known

    def claim(self, node: Node) -> bool:
        """Whether the target trusts its operands, and nobody knows them."""
        return checked(node.target) is not None and node not in self._known

    def bound_to(
        self, program: Program, is_free: Callable[[Node], bool], dying: Collection[int] | None = None
    ) -> CheckedExecutor:
        """The executor for a program. See `execute.protocol.GroupingExecutor`."""
        symbols = (True for value in program.inputs for _ in meta_symbols(value.meta))
        if not self._is_described or any(symbols):
            return self
        known = [node for node in program.nodes if self.claim(node) and holds_by_description(node)]
        return CheckedExecutor(is_described=True, known=frozenset(known))

    def call(self, names: Names, node: Node) -> str:
        """The check and the call."""
        function = checked(node.target)
        assert function is not None, "claimed before it is called"
        name = names.constant(function, f"checked_{getattr(function, '__name__', 'call').strip('_')}")
        return f"{name}({names.arguments(node)})"


def checked_call(names: Names, node: Node) -> str:
    """The call of a node by its operator's full name, checked where it trusts its operands."""
    if isinstance(getattr(node.target, "run", None), WithSubPrograms):  # subgraphs from files check their own calls
        return f"{names.constant(node.target, node.target.__name__)}({names.arguments(node)})"
    executor = CheckedExecutor()
    return executor.call(names, node) if executor.claim(node) else plain_call(names, node)


def with_checks(executors: ExecutorList, *, is_described: bool = False) -> ExecutorList:
    """The list with this executor before the others. is_described: see `CheckedExecutor`."""
    return ExecutorList((CheckedExecutor(is_described=is_described), *executors.executors))
