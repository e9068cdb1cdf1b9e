"""The executor for programs from files: it checks operands that torch's kernels would trust, then calls them.

It stands first in the list of executors, and claims those calls alone.
"""

from __future__ import annotations

from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ir.text import Names, plain_call
from dovetail.ops.preconditions import checked


class CheckedExecutor:
    """Claims the calls of kernels that trust their operands. See `execute.protocol.Executor`."""

    name = "checked"

    def claim(self, node: Node) -> bool:
        """Whether the target trusts its operands."""
        return checked(node.target) is not None

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


def with_checks(executors: ExecutorList) -> ExecutorList:
    """The list with this executor before the others."""
    return ExecutorList((CheckedExecutor(), *executors.executors))
