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


class ComputedNumbers:
    """Numbers of tensors in one recording. Cost: each node is looked at once, however many numbers are asked for."""

    def __init__(self) -> None:
        self._makers: dict[Value, int] = {}
        self._written: set[int] = set()
        self._last: Node | None = None
        self._seen = 0

    def number_of(self, nodes: Sequence[Node], value: Value, reals: Mapping[Value, torch.Tensor]) -> Plain | None:
        """The number that a tensor holds; None where it takes more to know it.

        nodes: of the recording so far. reals: tensors from before the step.
        """
        self._look_at(nodes)
        chain = self._chain(nodes, value, reals)
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

    def _look_at(self, nodes: Sequence[Node]) -> None:
        """Note what the nodes make and write that have come since the last time."""
        if self._seen > len(nodes) or (self._seen and nodes[self._seen - 1] is not self._last):  # some were taken back
            self._makers, self._written, self._seen = {}, set(), 0
        for place in range(self._seen, len(nodes)):
            self._makers.update(dict.fromkeys(nodes[place].results(), place))
            self._written.update([v.tensor.storage for v in written_values(nodes[place]) if v.is_tensor])
        self._seen, self._last = len(nodes), nodes[-1] if nodes else None

    def _chain(self, nodes: Sequence[Node], value: Value, reals: Mapping[Value, torch.Tensor]) -> list[Node] | None:
        """The operators that compute a value, in order; None where they are too many, or more than they compute."""
        wanted, places, pending = {value}, set[int](), [value]
        while pending:
            place = self._makers.get(pending.pop())
            if place is None or place in places:
                continue
            node = nodes[place]
            facts = facts_of(node.target)
            if not isinstance(node.target, Overload) or not (facts.is_pure and facts.repeats) or any(node.symbols()):
                return None
            places.add(place)
            if len(places) > _MOST_NODES:
                return None
            pending += [operand for operand in node.operands() if operand not in wanted]
            wanted.update(node.operands())
        chain = [nodes[place] for place in sorted(places)]
        made = {result for node in chain for result in node.results()}
        if not all(v in reals and not is_fake(reals[v]) for v in wanted - made):
            return None
        sizes = [v.tensor.numel() for v in wanted | made if v.is_tensor]
        if sum(size if isinstance(size, int) else _MOST_ELEMENTS + 1 for size in sizes) > _MOST_ELEMENTS:
            return None
        storages = {v.tensor.storage for v in wanted if v.is_tensor}
        return chain if storages.isdisjoint(self._written) else None
