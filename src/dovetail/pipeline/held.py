"""How errors about memory speak of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.deferred import deferred
from dovetail.ir.program import Program

if TYPE_CHECKING:
    from dovetail.execute import needs
else:
    needs = deferred("dovetail.execute.needs")


@dataclass(frozen=True, slots=True)
class Held:
    """How errors speak of a program: what it is, what is there before it runs, and what would lower its peak."""

    what: str
    state: str
    others: str

    def least_bytes(self, program: Program) -> int:
        """What is taken before the first node."""
        return needs.bytes_before_run(program) if self is STEP else 0


_NO_GRADIENTS = "clear them first thing in the step, with keep_grads=False"
STEP = Held("step", "state and arguments", "take a smaller batch, or keep no gradients: " + _NO_GRADIENTS)
GRAPH = Held("graph", "weights and arguments", "or take a smaller batch")
FROZEN = Held("frozen program", "weights and arguments", "or take a smaller batch")
