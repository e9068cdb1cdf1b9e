"""Names of new constants: those of the same expression over the same constants are always the same.

    weight_t_2d7f41cd: of the first constant, of the operator, of the whole expression

Cost: O(nodes + operands).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.ir.text import identifier
from dovetail.passes.fold_graph import Pool


def names_for(pool: Pool, stored: Sequence[int], reserved: Collection[str]) -> tuple[tuple[int, str], ...]:
    """A name for each stored value, in order. reserved: names that they must not have."""
    taken = {*reserved, *(value.name for program in pool.programs for value in program.inputs)}
    taken |= {value.name for program in pool.programs for node in program.nodes for value in node.results()}
    firsts = _first_constants(pool)
    found: list[tuple[int, str]] = []
    for value in stored:
        facts = pool.values[value]
        expression = pool.expressions[facts.maker]
        digest, _, place = facts.digest.partition(".")
        wish = f"{firsts[value]}_{_short(expression.node.target)}"
        suffix = f"_{place}" if len(expression.outputs) > 1 else ""
        lengths = iter(range(8, len(digest) + 1, 8))
        name = identifier(f"{wish}_{digest[: next(lengths)]}{suffix}")
        while name in taken:
            name = identifier(f"{wish}_{digest[: next(lengths)]}{suffix}")
        taken.add(name)
        found.append((value, name))
    return tuple(found)


def _first_constants(pool: Pool) -> list[str]:
    """By value, the name of the first constant that it is computed from."""
    found: list[str] = []
    for facts in pool.values:
        operands = pool.expressions[facts.maker].operands if facts.maker >= 0 else ()
        found.append(found[operands[0]] if operands else facts.name[:60] or "made")
    return found


def _short(target: object) -> str:
    return str(getattr(target, "__name__", "call")).partition(".")[0].strip("_")
