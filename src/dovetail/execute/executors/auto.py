"""The executor that takes machine code for programs whose time goes into calls, and leaves all others to `aten`.

Nothing of the machinery behind machine code is imported for programs that do not gain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dovetail.analysis.call_bound import is_call_bound
from dovetail.deferred import deferred
from dovetail.execute.protocol import GroupingExecutor
from dovetail.ir.node_groups import NodeGroup
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program
from dovetail.ir.text import Names

if TYPE_CHECKING:
    from dovetail.execute.native import executor as native
    from dovetail.execute.native import int8_rows, machine, panel_calls, panels
else:
    native = deferred("dovetail.execute.native.executor")
    machine = deferred("dovetail.execute.native.machine")
    panels = deferred("dovetail.execute.native.panels")
    int8_rows = deferred("dovetail.execute.native.int8_rows")
    panel_calls = deferred("dovetail.execute.native.panel_calls")

_NONE: Mapping[int, NodeGroup] = MappingProxyType({})


class AutoExecutor:
    """See `execute.protocol.GroupingExecutor`. Bound to a program, it is the native executor, or claims
    products by panels alone.
    """

    groups = _NONE

    def __init__(self, *, for_speed: bool = False) -> None:
        """for_speed: calls count, not how long it takes until the first one, and results may differ by rounding."""
        self._for_speed = for_speed

    def made_for_speed(self) -> AutoExecutor:
        """The same, for programs of which only calls count."""
        return AutoExecutor(for_speed=True)

    @property
    def name(self) -> str:
        """The name that it is asked for by."""
        return "auto"

    @property
    def multiplies_panels(self) -> bool:
        """Whether it can claim products by weights in panels."""
        return panels.multiplies_panels()

    @property
    def multiplies_int8_panels(self) -> bool:
        """Whether it can claim products of 8-bit integers by panels."""
        return int8_rows.multiplies_int8_panels()

    def claim(self, node: Node) -> bool:
        """Whether there is a kernel for its primitive; no other node, by itself."""
        return isinstance(node.target, Prim) and panel_calls.has_kernel(node.target)

    def call(self, names: Names, node: Node) -> str:
        """The call of a claimed node."""
        return panel_calls.call_of(names, node)

    def bound_to(
        self, program: Program, is_free: Callable[[Node], bool], dying: Collection[int] | None = None
    ) -> GroupingExecutor:
        """The native executor for a program whose time goes into calls, where machine code can be made; else itself."""
        if not is_call_bound(program, for_speed=self._for_speed) or machine.unavailable():
            return self
        return native.NativeExecutor(rounds=self._for_speed).bound_to(program, is_free, dying)
