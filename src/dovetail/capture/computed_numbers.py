"""A number of a tensor while a step is recorded on fakes, computed for real where that takes little.

    if (position_ids.diff() != 1).any(): ...        asks arguments, before the model runs

Only pure operators on tensors from before the step are run, which nothing has written: nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.errors import RefusedOperands
from dovetail.ir.program import Node, Value
from dovetail.ops.facts import facts_of, written_values
from dovetail.ops.interpret import run_node
from dovetail.torch_compat.dispatch import Overload, without_modes
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.traced_numbers import Plain

_MOST_NODES = 256
_MOST_ELEMENTS = 1 << 18  # that operators make or take, all together


def number_of(nodes: Sequence[Node], value: Value, reals: Mapping[Value, torch.Tensor]) -> Plain | None:
    """The number that a tensor holds; None where it takes more to know it. reals: tensors from before the step."""
    chain = _chain(nodes, value, reals)
    if chain is None:
        return None
    held: dict[Value, Any] = dict(reals)
    with without_modes(), torch.no_grad(), autocast_off():
        try:
            for node in chain:
                held.update(run_node(node, held, {}))
            number = held[value].item()
        except (RefusedOperands, RuntimeError, IndexError, ValueError, TypeError):  # eager mode raises it
            return None
    return number if isinstance(number, bool | int | float) else None


def _chain(nodes: Sequence[Node], value: Value, reals: Mapping[Value, torch.Tensor]) -> list[Node] | None:
    """The operators that compute a value, in order; None where they are too many, or more than they compute."""
    wanted, chain = {value}, list[Node]()
    for node in reversed(nodes):
        if wanted.isdisjoint(node.results()):
            continue
        facts = facts_of(node.target)
        if not isinstance(node.target, Overload) or not (facts.is_pure and facts.repeats) or any(node.symbols()):
            return None
        chain.append(node)
        wanted.update(node.operands())
    made = {result for node in chain for result in node.results()}
    first = wanted - made
    if len(chain) > _MOST_NODES or not all(v in reals and not is_fake(reals[v]) for v in first):
        return None
    sizes = [v.tensor.numel() for v in wanted | made if v.is_tensor]
    storages = {v.tensor.storage for v in wanted if v.is_tensor}
    if sum(size if isinstance(size, int) else _MOST_ELEMENTS + 1 for size in sizes) > _MOST_ELEMENTS:
        return None
    if any(v.tensor.storage in storages for node in nodes for v in written_values(node)):
        return None
    return chain[::-1]
