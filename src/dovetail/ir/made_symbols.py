"""Which nodes give sizes or numbers that are only known when they have run."""

from __future__ import annotations

from dovetail.ir.program import Node, Phase, Program, is_static, meta_symbols
from dovetail.ir.signature import Tangent


def made_symbols(program: Program) -> dict[Node, frozenset[str]]:
    """The nodes whose results have sizes (or are numbers) that are only known once they ran, with those symbols."""
    roles = list(zip(program.signature.inputs, program.inputs, strict=True))
    known = {name for role, value in roles if not isinstance(role, Tangent) for name in meta_symbols(value.meta)}
    arriving = {name for role, value in roles if isinstance(role, Tangent) for name in meta_symbols(value.meta)}
    found: dict[Node, frozenset[str]] = {}
    for node in program.nodes:
        if arriving and node.phase is Phase.BACKWARD:
            known |= arriving  # they are as large as what forward made
        made = {name for value in node.results() if not is_static(value.meta) for name in meta_symbols(value.meta)}
        made -= known
        if made:
            known |= made
            found[node] = frozenset(made)
    return found
