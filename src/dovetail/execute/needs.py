"""Bytes that operators take from the allocator besides their results: copies, buffers, reordered weights.

No description of an operator says what its kernel takes, so it is measured: each kind of call runs once, on tensors of
the same shapes, strides and dtypes (`operator_calls`), while the allocator's events are recorded (`operator_runs`).
What was found is kept for the process. Views take nothing and are not run. Calls that are too large to be run are run
at smaller sizes, where that is asked for (`scaled_runs`). What cannot be run is named.

Cost:   about 30 ms, and one run of each kind of call that was not met before.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.analysis.liveness import NOTHING, Need
from dovetail.execute.operator_calls import CallMaker, OperatorCall, is_opaque
from dovetail.execute.operator_runs import run_calls
from dovetail.execute.scaled_runs import extrapolate, most_bytes
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number, OrOne
from dovetail.ops.collectives import collective_of, keeps_scratch, scratch_bytes
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.rng import default_generator

_FOUND: dict[Hashable, Need | None] = {}
_EXTRAPOLATED: dict[Hashable, Need | None] = {}


@dataclass(frozen=True, slots=True)
class Needs:
    """What the nodes of programs need besides operands and results.

    hints: a number for each size symbol. largest_bytes: calls with larger operands and results are not run as they
    are, but at smaller sizes; None: all are run. in_one: storages that lie in one block of memory. unknown: nodes whose
    operators could not be run; they count as nothing. extrapolated: nodes of which runs at smaller sizes have shown
    what they need.
    """

    hints: Mapping[str, Number]
    largest_bytes: int | None = None
    in_one: Collection[int] = frozenset()
    unknown: list[Node] = field(default_factory=list)
    extrapolated: list[Node] = field(default_factory=list)
    _needs: dict[Node, Need] = field(default_factory=dict)
    _before: Mapping[Node, Need] = field(default_factory=dict)

    def apart(self) -> Needs:
        """The same for a program that is only looked at: what it learns is forgotten with it."""
        return Needs(self.hints, self.largest_bytes, self.in_one, _before=self._needs)

    def measure(self, nodes: Iterable[Node]) -> None:
        """Look at the nodes of a program, so that `need_of` knows them."""
        all_nodes = list(nodes)
        new = [node for node in dict.fromkeys(all_nodes) if node not in self._needs and node not in self._before]
        producers = {value: node for node in all_nodes for value in node.results()}
        maker = CallMaker(OrOne(self.hints), producers, self.in_one)
        calls = {node: call for node in new if (call := maker.call_of(node)) is not None}
        kinds = list({id(call): call for call in calls.values()}.values())
        large = [call for call in kinds if self._is_large(call)]
        if calls:
            apart = {id(call) for call in large}
            _run([call for call in kinds if id(call) not in apart])
            _extrapolate(large, self.largest_bytes or 0)
        found = {id(call): _FOUND.get(call.key, _EXTRAPOLATED.get(call.key)) for call in kinds}
        extrapolated = {id(call) for call in large if call.key not in _FOUND and found[id(call)] is not None}
        for node in new:
            call = calls.get(node)
            if collective_of(node) is not None:
                need: Need | None = _of_collective(node, self.hints)
            elif call is None:
                need = None if is_opaque(node) else NOTHING
            else:
                need = found[id(call)]
                if id(call) in extrapolated:
                    self.extrapolated.append(node)
            self._needs[node] = need or NOTHING
            if need is None:
                self.unknown.append(node)

    def _is_large(self, call: OperatorCall) -> bool:
        if self.largest_bytes is None or call.key in _FOUND:
            return False
        return call.size_bytes > most_bytes(call, self.largest_bytes)

    def need_of(self, node: Node) -> Need:
        """What a node needs."""
        known = self._needs.get(node) or self._before.get(node)
        if known is None:
            self.measure([node])
            known = self._needs[node]
        return known


def _run(calls: Sequence[OperatorCall]) -> list[Need | None]:
    """What calls need; those that were not met before are run."""
    missing = {call.key: call for call in calls if call.key not in _FOUND}
    safe = {key: call for key, call in missing.items() if call.is_safe}
    if missing:
        found = dict(zip(safe, run_calls(list(safe.values())) if safe else (), strict=True))
        _FOUND.update(dict.fromkeys(missing) | found)
    return [_FOUND[call.key] for call in calls]


def _extrapolate(calls: Sequence[OperatorCall], largest_bytes: int) -> None:
    """Find out what large calls need that were not met before."""
    missing = {call.key: call for call in calls if call.key not in _EXTRAPOLATED}
    safe = {key: call for key, call in missing.items() if call.is_safe}
    found = dict(zip(safe, extrapolate(list(safe.values()), largest_bytes, _run), strict=True))
    _EXTRAPOLATED.update(dict.fromkeys(missing) | found)


def _of_collective(node: Node, hints: Mapping[str, Number]) -> Need:
    """What a collective takes until it is waited for. It is not run: other ranks would have to answer."""
    on_cpu = all(value.tensor.device.type == "cpu" for value in node.operands() if value.is_tensor)
    size = scratch_bytes(node, hints) if on_cpu else 0
    return Need(kept_bytes=(size,)) if keeps_scratch(node) else Need(size)


def bytes_before_run(program: Program) -> int:
    """Bytes that the run of a step takes for a moment before its first node: the state of a generator, to put back."""
    draws = any(facts_of(node.target).draws for node in program.nodes)
    return default_generator().get_state().numel() if draws else 0
