"""Read what an input holds now in the place of what was copied into it.

    m = add(a, 1); copy_(b, m)            m = add(a, 1); copy_(b, m)
    ...; c = mul(x, m)             ->     ...; c = mul(x, b)

The new contents die with the copy, where they would live until their last read: the statistics of batch norms, which
backward reads, and caches that a step fills. Only where the two lie alike, and neither is written again. Views keep the
new contents, and so does what reads from a place in memory (`as_strided`): an input may begin at another one.
Bitwise: the same numbers in the same layout. Cost: O(nodes + operands).
"""

from __future__ import annotations

import torch

from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ops.facts import written_values
from dovetail.torch_compat.dispatch import Overload, schema_of

_COPY = torch.ops.aten.copy_.default


def read_written_inputs(program: Program) -> Program:
    """The program in which inputs are read once they were written; itself where that changes nothing."""
    last: dict[int, int] = {}
    for at, node in enumerate(program.nodes):
        last.update((value.tensor.storage, at) for value in written_values(node) if value.is_tensor)
    inputs, returned = set(program.inputs), set(values_in(program.outputs))
    bound = _bound_to_memory(program)
    held: dict[Value, Value] = {}
    nodes: list[Node] = []
    for at, node in enumerate(program.nodes):
        nodes.append(node.with_operands(lambda value: held.get(value, value)) if held else node)
        if node.target is not _COPY:
            continue
        target, made = node.args[:2]
        if not (isinstance(target, Value) and isinstance(made, Value)) or target not in inputs or made in inputs:
            continue
        is_last = last[target.tensor.storage] == at and last.get(made.tensor.storage, -1) < at
        if is_last and made not in returned and made not in bound and target.tensor.lies_like(made.tensor):
            held[made] = target
    is_same = all(a is b for a, b in zip(nodes, program.nodes, strict=True))
    return program if is_same else program.replace_nodes(tuple(nodes))


def _bound_to_memory(program: Program) -> set[Value]:
    """Values of which some node makes a view, or reads from a place in memory."""
    found: set[Value] = set()
    for node in program.nodes:
        storages = {value.tensor.storage for value in node.results() if value.is_tensor}
        by_place = not isinstance(node.target, Overload) or any(
            argument.name == "storage_offset" for argument in schema_of(node.target).arguments
        )
        found.update(v for v in node.operands() if v.is_tensor and (by_place or v.tensor.storage in storages))
    return found
