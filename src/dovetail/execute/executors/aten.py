"""The executor that runs every node with torch's own operators: the results are eager's, bit by bit."""

from __future__ import annotations

from dovetail.execute.executors.bindings import cheapest_call
from dovetail.ir.program import Node
from dovetail.ir.text import Names


class AtenExecutor:
    """Claims everything. See `execute.protocol.Executor`."""

    name = "aten"

    def claim(self, node: Node) -> bool:
        """Always."""
        return True

    def call(self, names: Names, node: Node) -> str:
        """A method, a Python function or the operator itself, whichever is cheapest and exact."""
        return cheapest_call(names, node)
