"""Remove nodes whose results are not read.

A node stays if one of its results is read, or a size that is only known from them, or if `ops.facts.may_be_removed`
says that running it has another effect: writes, effects, and draws from a random generator (they move its state).

    a = add(x, 1); b = mul(x, 2); return a   ->   a = add(x, 1); return a

Source: JAX's `dce_jaxpr` (jax/_src/interpreters/partial_eval.py) for the shape of the sweep. Cost: O(nodes + operands).
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value, symbols_in, values_in
from dovetail.ops.facts import may_be_removed


@dataclass(frozen=True, slots=True)
class DeadCodeReport:
    """removed: names of the first result of each removed node, in program order."""

    removed: tuple[str, ...]

    def __str__(self) -> str:
        return f"removed {len(self.removed)} unread nodes"


def remove_dead_code(program: Program) -> tuple[Program, DeadCodeReport]:
    """The program without nodes that nobody can miss. Not checked: that facts are true (see `ops.facts`)."""
    made = made_symbols(program)
    needed: set[Value] = set(values_in(program.outputs))
    symbols: set[str] = set(symbols_in(program.outputs))
    kept: list[Node] = []
    removed: list[str] = []
    for node in reversed(program.nodes):
        is_needed = not (needed.isdisjoint(node.results()) and symbols.isdisjoint(made.get(node, ())))
        if may_be_removed(node) and not is_needed:
            removed.append(next((value.name for value in node.results()), "nothing"))
            continue
        needed.update(node.operands())
        symbols.update(node.symbols())
        kept.append(node)
    return program.replace_nodes(tuple(reversed(kept))), DeadCodeReport(tuple(reversed(removed)))
