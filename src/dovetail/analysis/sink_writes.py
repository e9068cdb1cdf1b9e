"""Let reads of old contents run before the write that replaces them.

    r = index_put(x, i, v); s = sum(x); copy_(x, r)   ->   s = sum(x); r = index_put(x, i, v); copy_(x, r)

The write, and what depends on it up to the last of the reads, moves behind them; everything keeps its order otherwise.
Not possible when a read depends on the write, or when the two groups both draw random numbers or have effects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.analysis.buffers import Buffers
from dovetail.ir.program import Node, Value
from dovetail.ops.facts import facts_of


def order_after(buffers: Buffers, node: Node, readers: Collection[Node], fixed: Collection[Node]) -> list[Node] | None:
    """The nodes from `node` to the last of `readers`, in an order that runs the readers first; None if there is none.

    fixed: nodes that nothing may pass, and that pass nothing.
    """
    start = buffers.position[node]
    window = buffers.order[start : max(buffers.position[reader] for reader in readers) + 1]
    if not any(node in fixed for node in window):
        made: set[Value] = set()
        late: list[Node] = []
        early: list[Node] = []
        for other in window:
            if other is node or not made.isdisjoint(other.operands()):
                made.update(other.results())
                late.append(other)
            else:
                early.append(other)
        keep_order = any(map(_keeps_order, late)) and any(map(_keeps_order, early))
        if not keep_order and not any(reader in late for reader in readers):
            return [*early, *late]
    return None


def copy_back_early(buffers: Buffers, backs: Sequence[Node], last_check: Node | None) -> None:
    """Let each copy back into an input run as soon as it can: the new contents may die there.

    It stays behind the maker of the new contents, every earlier read of the input, copies back into the same memory
    that stood before it, and the last check.
    """
    made_at = {value: at for at, node in enumerate(buffers.order) for value in node.results()}
    waiting: dict[int, list[Node]] = {}
    earliest: dict[int, int] = {}
    placed: dict[Node, int] = {}
    for node in backs:
        target, new = node.args[:2]
        assert isinstance(target, Value) and isinstance(new, Value), "a copy back copies a value"
        home = target.tensor.storage
        readers = {read.node for value in buffers.values_on[home] for read in buffers.reads.get(value, ())}
        earlier = [r for r in readers if r is not None and buffers.position[r] < buffers.position[node]]
        before = [placed.get(r, buffers.position[r]) for r in earlier]
        before += [made_at.get(new, -1), made_at.get(target, -1), earliest.get(home, -1)]
        before.append(-1 if last_check is None else buffers.position[last_check])
        earliest[home] = placed[node] = max(before)
        waiting.setdefault(earliest[home], []).append(node)
    moved = set(backs)
    order = list(waiting.get(-1, ()))
    for at, node in enumerate(buffers.order):
        if node not in moved:
            order.append(node)
        order += waiting.get(at, ())
    buffers.reorder(0, order)


def _keeps_order(node: Node) -> bool:
    facts = facts_of(node.target)
    return facts.draws or facts.effect or facts.reads_generator or bool(facts.writes)
