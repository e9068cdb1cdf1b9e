"""Keep weights that were gathered, where eager mode gathers them again.

    w = gather_own(e, 0, 8); y = mm(x, w)             w = gather_own(e, 0, 8); y = mm(x, w)
    v = gather_own(f, 0, 8); g = mm(d, v)      ->     g = mm(d, w)

`fully_shard` frees weights behind forward and gathers them again for backward, unless it is told to keep them. Which is
better for a layer depends on what else is alive in between: those of the last layers are read again at once, and to
gather takes as much as they do. Layers are taken in the order in which backward reads them. Without a limit those are
kept that do not raise the peak; under a limit that is kept anyway, as many as it has room for.

Fewer collectives run than in eager mode, so such a program runs only where all ranks do the same (`execute.agreement`).
They are dropped in the group that ranks agree on first, before anything was sent.

Bitwise: the same contents. Cost: O(nodes + operands), and re-inplacing for each number of layers that is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.collectives import collective_of, gathers
from dovetail.ops.facts import may_be_merged
from dovetail.passes.collection import collection_paused
from dovetail.passes.common_subexpressions import operand_key
from dovetail.passes.dead_code import remove_dead_code


@dataclass(frozen=True, slots=True)
class GatherOnceReport:
    """kept: how many gathers are left out. repeated: how many are made again. peak_bytes, was_bytes: simulated."""

    kept: int = 0
    repeated: int = 0
    peak_bytes: int = -1
    was_bytes: int = -1

    def __str__(self) -> str:
        if not self.repeated:
            return "nothing is gathered again"
        peak = f": peak {self.peak_bytes}, not {self.was_bytes} bytes" if self.kept else ""
        return f"{self.kept} of {self.repeated} gathers are not made again{peak}"


@collection_paused()
def gather_once(
    program: Program, weigh: Callable[[Program], int], most_bytes: int | None = None
) -> tuple[Program, GatherOnceReport]:
    """The program with fewer gathers.

    program: functional, but for copies into its inputs at its end. weigh: the peak of a program. most_bytes: the limit
    for it; None: as low as can be.
    """
    equal = _equal_values(program)
    repeated = _repeated(program, equal)
    if not repeated:
        return program, GatherOnceReport()
    was = weigh(program)
    tried: dict[int, tuple[Program, int]] = {0: (program, was)}

    def peak_of(count: int) -> int:
        if count not in tried:
            made = _without(program, repeated[:count], equal)
            tried[count] = made, weigh(made)
        return tried[count][1]

    if most_bytes is not None and was <= most_bytes:
        count = _largest(len(repeated), lambda number: peak_of(number) <= most_bytes)
    else:
        count = 0
        while count < len(repeated) and peak_of(count + 1) <= peak_of(count):
            count += 1
    made, peak = tried[count]
    return made, GatherOnceReport(count, len(repeated), peak, was)


def _largest(count: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `count` that fits, as 0 does; found by halves."""
    if fits(count):
        return count
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _equal_values(program: Program) -> dict[Value, Value]:
    """For each value that an earlier node has made already, in whatever phase, that value."""
    escaping, fixed = program.output_storages(), made_symbols(program)
    equal: dict[Value, Value] = {}
    first: dict[object, Node] = {}
    for node in program.nodes:
        shown = any(value.is_tensor and value.tensor.storage in escaping for value in node.results())
        if shown or node in fixed or not (may_be_merged(node) or gathers(node)):
            continue
        same = node.with_operands(lambda value: equal.get(value, value))
        key = (node.target, operand_key(same.args), operand_key(same.kwargs))
        earlier = first.setdefault(key, node)
        if earlier is not node:
            pairs = zip(node.outputs, earlier.outputs, strict=True)
            equal.update((old, new) for old, new in pairs if old is not None and new is not None)
    return equal


def _repeated(program: Program, equal: Collection[Value]) -> list[Node]:
    """The gathers of what was gathered before, in the group of the first collective."""
    collectives = [node for node in program.nodes if collective_of(node) is not None]
    group = collectives[0].args[-1] if collectives else None
    found = [node for node in collectives if gathers(node) and all(value in equal for value in node.results())]
    return [node for node in found if node.results() and node.args[-1] == group]


def _without(program: Program, dropped: Collection[Node], equal: dict[Value, Value]) -> Program:
    """The program without some gathers, nor copies of what they gather that were made before."""
    draft = Draft(program)
    known: set[Value] = set()
    gone = set(dropped)
    for node in program.nodes:
        read = [value for value in node.operands() if value.is_tensor]
        is_copy = bool(read) and known.issuperset(read) and bool(node.results())
        if node in gone or (is_copy and all(value in equal for value in node.results())):
            for old in node.results():
                draft.merge(old, draft.current(equal[old]))
            known.update(node.results())
        else:
            draft.take(node)
    return remove_dead_code(draft.finish())[0]
