"""Write each input as soon as its new contents can be computed and the old ones are no longer read.

    g = mm(e, x); f = mm(e, p); h = mm(f, y)            g = mm(e, x); f = mm(e, p)
    d = mul(g, 0.1); q = sub(p, d)                ->    d = mul(g, 0.1); q = sub(p, d); copy_(p, q)
    c = mul(h, 0.1); r = sub(s, c)                      h = mm(f, y)
    copy_(p, q); copy_(s, r)                            c = mul(h, 0.1); r = sub(s, c); copy_(s, r)

In a training step, gradients are freed as soon as they are used; an optimizer step at the end would keep all of them
until then. `analysis.updates` finds updates by structure. Updates that can run at once, because all of them
need the norm of all gradients, say, run one after the other. Lists are split first (`passes.expand_foreach`). Checks
move up in front of the first write. The order of everything else stands, draws and effects among it. If an update
needs memory when little is free, it waits until there is more (`analysis.update_times`).

Bitwise: the same operators on the same operands. The program is kept as it was if the peak, once it works in place,
would be higher. Cost: O(nodes + operands), and re-inplacing twice, or three times if updates wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dovetail.analysis.reads import can_fail
from dovetail.analysis.update_times import times_that_need_less
from dovetail.analysis.updates import UpdateGroup, Updates, find_updates
from dovetail.ir.program import Node, Program, Value
from dovetail.passes.collection import collection_paused
from dovetail.passes.expand_foreach import expand_lists
from dovetail.passes.inplace import PlanMemory

# As in `passes.sink`: what is kept alive may be a little larger than what is made.
_NEARLY = 0.95


@dataclass(frozen=True, slots=True)
class EarlyUpdatesReport:
    """groups: how many updates run before the end; 0 where the program is kept. waiting: of these, those that could run
    earlier yet, and have no room there. expanded: lists expanded. checks: how many run earlier. saved_bytes: by how
    much the peak is lower, once all works in place.
    """

    groups: int = 0
    waiting: int = 0
    expanded: int = 0
    checks: int = 0
    saved_bytes: int = 0

    def __str__(self) -> str:
        if not self.groups:
            return "no update runs earlier"
        text = f"{self.groups} updates run earlier"
        text += f", {self.waiting} of them later than they could" if self.waiting else ""
        text += f"; split {self.expanded} lists" if self.expanded else ""
        text += f"; {self.checks} checks run earlier" if self.checks else ""
        return f"{text}: {self.saved_bytes} bytes less at the peak"


@collection_paused()
def early_updates(program: Program, memory: PlanMemory | None = None) -> tuple[Program, EarlyUpdatesReport]:
    """The program with each update where it can run first; itself where that takes more memory.

    program: functional, but for copies into its inputs, as `passes.functional.require_functional` has it; not checked.
    memory: where later passes find how the result works in place.
    """
    plans = memory or PlanMemory()
    apart, lists = expand_lists(program)
    updates = find_updates(apart)
    if not updates.groups:
        return program, EarlyUpdatesReport()
    best, times = scheduled(apart, updates), _ready(updates)
    in_place = plans.in_place(best)[1]
    peak = plans.peak_bytes(best)
    later = times_that_need_less(apart, updates, in_place)
    if later is not None:
        other = scheduled(apart, updates, later)
        other_peak = plans.peak_bytes(other)
        if other_peak < peak:
            best, peak, times = other, other_peak, later
    if _same_order(program, best):
        return program, EarlyUpdatesReport()
    saved = plans.peak_bytes(program) - peak
    if saved < 0:
        return program, EarlyUpdatesReport()
    waiting = sum(times[group] > group.ready for group in updates.groups)
    checks = sum(can_fail(node) and node not in apart.nodes[at + 1 : at + 2] for node, at in updates.hoisted.items())
    return best, EarlyUpdatesReport(len(updates.groups), waiting, lists, checks, saved)


def with_early_checks(program: Program) -> Program:
    """The program with each check as early as what it looks at is there; the order of everything else stands."""
    updates = find_updates(program)
    if not updates.hoisted:
        return program
    return scheduled(program, replace(updates, arithmetic=frozenset(), copies=frozenset(), groups=()))


def scheduled(program: Program, updates: Updates, times: Mapping[UpdateGroup, int] | None = None) -> Program:
    """The program with each group of updates right after a node of the frame. times: its position; the first possible
    one if not given, and at the earliest that.
    """
    order = _Schedule(program, updates, times or _ready(updates)).order()
    assert len(order) == len(program.nodes), "each node runs once"
    return program.replace_nodes(tuple(order))


def _ready(updates: Updates) -> dict[UpdateGroup, int]:
    return {group: group.ready for group in updates.groups}


def _same_order(before: Program, after: Program) -> bool:
    return before.nodes == after.nodes


class _Schedule:
    def __init__(self, program: Program, updates: Updates, times: Mapping[UpdateGroup, int]) -> None:
        self.program = program
        self.updates = updates
        self.held: set[Value] = set(program.inputs)
        self.due: dict[int, list[Node]] = {}
        for node in program.nodes:
            if node in updates.hoisted:
                self.due.setdefault(updates.hoisted[node], []).append(node)
        for group in updates.groups:
            self.due.setdefault(max(group.ready, times[group]), []).extend(group.nodes)
        self.checks = {node for node in program.nodes if can_fail(node)}
        self.done: set[Node] = set()
        self.nodes: list[Node] = []

    def order(self) -> list[Node]:
        """The nodes in order."""
        self._run_due(-1)
        for at, node in enumerate(self.program.nodes):
            if node in self.updates.arithmetic:
                if not self._may_wait(node):
                    self._run(node)
            elif node not in self.updates.copies and node not in self.done:
                self._append(node)
            self._run_due(at)
        for node in self.program.nodes:
            self._run(node)
        return self.nodes

    def _run_due(self, at: int) -> None:
        for node in self.due.get(at, ()):
            self._run(node)

    def _run(self, node: Node) -> None:
        """Run a node after what it needs, without recursion."""
        stack = [node]
        while stack:
            top = stack[-1]
            missing = (
                [n for n in self.updates.before.get(top, ()) if n not in self.done] if top not in self.done else []
            )
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if top not in self.done:
                assert top in self.updates.before, "the frame stands as it is"
                assert top not in self.updates.copies or not self.checks, "checks come before writes"
                self._append(top)

    def _append(self, node: Node) -> None:
        self.done.add(node)
        self.checks.discard(node)
        self.nodes.append(node)

    def _may_wait(self, node: Node) -> bool:
        """Whether what the node reads takes hardly more memory than what it makes."""
        made = _bytes_of(node.results())
        kept = _bytes_of({*node.operands()} - self.held)
        return made is not None and kept is not None and kept * _NEARLY <= made


def _bytes_of(values: Iterable[Value]) -> int | None:
    """Bytes of tensors; None where a size is not known."""
    sizes = [value.tensor.size_bytes() for value in values if value.is_tensor]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if len(known) == len(sizes) else None
