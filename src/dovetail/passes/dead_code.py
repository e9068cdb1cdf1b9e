"""Remove nodes whose results are not read.

A node stays if one of its results is read, or a size that is only known from them, or if `ops.facts.may_be_removed`
says that running it has another effect: writes, effects, and draws from a random generator (they move its state).
What is only read to make another tensor like it is not read: that one is made by itself.

    a = add(x, 1); b = mul(x, 2); return a       ->   a = add(x, 1); return a
    a = sum(x); b = ones_like(a); return b       ->   b = ones([]); return b

Source: JAX's `dce_jaxpr` (jax/_src/interpreters/partial_eval.py) for the shape of the sweep. Cost: O(nodes + operands).
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value, symbols_in, values_in
from dovetail.ops.facts import may_be_removed
from dovetail.ops.like_another import model_of, without_model


@dataclass(frozen=True, slots=True)
class DeadCodeReport:
    """removed: names of the first result of each removed node, in program order."""

    removed: tuple[str, ...]

    def __str__(self) -> str:
        return f"removed {len(self.removed)} unread nodes"


def remove_dead_code(program: Program) -> tuple[Program, DeadCodeReport]:
    """The program without nodes that nobody can miss. Not checked: that facts are true (see `ops.facts`)."""
    read = _read_values(program)
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
        stays = without_model(node) if (model := model_of(node)) is not None and model not in read else node
        needed.update(stays.operands())
        symbols.update(stays.symbols())
        kept.append(stays)
    return program.replace_nodes(tuple(reversed(kept))), DeadCodeReport(tuple(reversed(removed)))


def _read_values(program: Program) -> set[Value]:
    """The values whose elements something reads or shows, and inputs."""
    found = {*program.inputs, *values_in(program.outputs)}
    for node in program.nodes:
        model = model_of(node)
        found.update(value for value in node.operands() if value is not model)
    return found
