"""Keep for backward the zeros and ones that were drawn, not what was computed of them.

    b = bernoulli(e, 0.9)           b = bernoulli(e, 0.9); kept = _to_copy(b, bool); wide = _to_copy(kept, float32)
    noise = div(b, 0.9)             noise = div(wide, 0.9)
    y = mul(x, noise)         ->    y = mul(x, noise)
    ...                             ...
    d = mul(g, noise)               b_again = _to_copy(kept, float32); noise_again = div(b_again, 0.9)
                                    d = mul(g, noise_again)

Nothing is drawn twice, and what is made again has the same bits (`ops.whole_draws`). A dropout so holds one byte for
each element until backward, not four. Forward reads the copy, too, so that all that it makes can be made again while
the byte is kept; once nothing more is to be decided, `without_round_trips` lets it read what was drawn.

Cost: O(nodes + operands).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program, TensorMeta, Value
from dovetail.ir.sizes import Number, OrOne, evaluate, is_dense
from dovetail.ops.facts import written_values
from dovetail.ops.whole_draws import holding_type
from dovetail.partition.policy import can_run_again, is_cheap
from dovetail.partition.work import work_of

_to_copy = torch.ops.aten._to_copy.default


@dataclass(frozen=True, slots=True)
class NarrowDraws:
    """kept: names of the draws of which a narrower copy is kept. work: of the copies and of what runs for them in
    backward, as `work_of` counts. saved_bytes: how much less is kept for backward.
    """

    kept: tuple[str, ...] = ()
    work: int = 0
    saved_bytes: int = 0


NO_DRAWS = NarrowDraws()


@dataclass(frozen=True, slots=True)
class _Draw:
    """at: the node that draws. narrow: the copy. chain: nodes that make again what backward reads, in order.
    reader: the first node of backward that reads any of it. work, saved_bytes: see `NarrowDraws`.
    """

    at: int
    narrow: TensorMeta
    chain: tuple[Node, ...]
    reader: int
    work: int
    saved_bytes: int


def narrow_draws(
    program: Program, hints: Mapping[str, Number], most_work: float, only: Collection[str] | None = None
) -> tuple[Program, NarrowDraws]:
    """The program in which backward makes again what it reads of draws; itself where there are none.

    most_work: for all of them; those that would be kept the longest come first. only: names of draws; all by default.
    """
    found, work = list[_Draw](), 0
    for draw in sorted(_Finder(program, hints).draws(), key=lambda draw: draw.at - draw.reader):
        name = program.nodes[draw.at].results()[0].name
        if work + draw.work <= most_work and (only is None or name in only):
            found.append(draw)
            work += draw.work
    if not found:
        return program, NO_DRAWS
    kept = tuple([program.nodes[draw.at].results()[0].name for draw in found])
    return _written(program, found), NarrowDraws(kept, work, sum([draw.saved_bytes for draw in found]))


class _Finder:
    def __init__(self, program: Program, hints: Mapping[str, Number]) -> None:
        self.program = program
        self.hints = hints
        self.known = OrOne(hints)
        self.fixed = frozenset(made_symbols(program))
        self.held = _held(program)
        self.readers: dict[Value, list[int]] = {}
        for at, node in enumerate(program.nodes):
            for value in dict.fromkeys(node.operands()):
                self.readers.setdefault(value, []).append(at)

    def draws(self) -> Iterator[_Draw]:
        """Draws that are worth a copy."""
        for at, node in enumerate(self.program.nodes):
            dtype = holding_type(node) if node.phase is Phase.FORWARD else None
            found = None if dtype is None else self._draw(at, node, dtype)
            if found is not None:
                yield found

    def _draw(self, at: int, node: Node, dtype: torch.dtype) -> _Draw | None:
        """What becomes of a draw; None where backward reads nothing of it, or a copy is no smaller than that."""
        (value,) = node.results()
        meta = value.tensor
        makers = self._made_of(value)
        late = {made: first for made in (value, *makers) if (first := self._first_late(made)) is not None}
        read = {made.tensor.storage: made for made in late}
        narrow = replace(meta, dtype=dtype)
        lies_plainly = meta.offset == 0 and (meta.is_contiguous() or is_dense(meta.shape, meta.stride))
        if not lies_plainly or not read or not read.keys().isdisjoint(self.held):
            return None
        saved = sum([self._bytes(made.tensor) for made in read.values()]) - self._bytes(narrow)
        if saved <= 0:
            return None
        chain = _chain(late, makers)
        copies = 2 * work_of(_copy(value, Value("kept", replace(narrow, storage=-1)), node), self.hints)
        work = copies + sum([work_of(one, self.hints) for one in chain])
        return _Draw(at, narrow, chain, min(late.values()), work, saved)

    def _made_of(self, value: Value) -> dict[Value, Node]:
        """What forward makes of a value alone, at little cost, with the nodes that make it, in order."""
        found: dict[Value, Node] = {}
        waiting = list(self.readers.get(value, ()))
        heapq.heapify(waiting)
        while waiting:
            node = self.program.nodes[heapq.heappop(waiting)]
            if node.phase is not Phase.FORWARD or not is_cheap(node) or not can_run_again(node, self.fixed):
                continue
            results = node.results()
            if results[0] not in found and all(operand is value or operand in found for operand in node.operands()):
                found.update(dict.fromkeys(results, node))
                for result in results:
                    for reader in self.readers.get(result, ()):
                        heapq.heappush(waiting, reader)
        return found

    def _first_late(self, value: Value) -> int | None:
        """The first node of backward that reads a value."""
        nodes = self.program.nodes
        return next((at for at in self.readers.get(value, ()) if nodes[at].phase is Phase.BACKWARD), None)

    def _bytes(self, meta: TensorMeta) -> int:
        return int(evaluate(meta.size_bytes(), self.known))


def _chain(wanted: Collection[Value], makers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The nodes without which some values cannot be made, in order. makers: of all that may run, in order."""
    needed, waiting = set[Node](), [value for value in wanted if value in makers]
    while waiting:
        node = makers[waiting.pop()]
        if node not in needed:
            needed.add(node)
            waiting += [value for value in node.operands() if value in makers]
    return tuple([node for node in dict.fromkeys(makers.values()) if node in needed])


def _copy(source: Value, made: Value, drawn: Node) -> Node:
    """A copy with another type. drawn: the node that drew what is copied."""
    kwargs = (("dtype", made.tensor.dtype),)
    return Node(_to_copy, (source,), kwargs, outputs=(made,), phase=drawn.phase, origin=drawn.origin)


def _written(program: Program, draws: Sequence[_Draw]) -> Program:
    """The program in which these draws are kept as copies."""
    draft = Draft(program)
    made = {draw.at: draw for draw in draws}
    readers: dict[int, list[_Draw]] = {}
    for draw in draws:
        readers.setdefault(draw.reader, []).append(draw)
    copies: dict[int, Value] = {}
    for at, node in enumerate(program.nodes):
        for draw in readers.get(at, ()):
            _make_again(draft, program.nodes[draw.at], draw.chain, copies[draw.at])
        draft.take(node)
        if at in made:
            (value,) = node.results()
            copies[at] = draft.value(f"{value.name}_kept", made[at].narrow)
            draft.nodes.append(_copy(draft.current(value), copies[at], node))
            wide = draft.value(f"{value.name}_wide", value.tensor)
            draft.nodes.append(_copy(copies[at], wide, node))
            draft.substitute(value, wide)
    return draft.finish()


def without_round_trips(program: Program) -> Program:
    """The program in which what was drawn stands for its copy that was widened at once; itself where there is none.

        b = bernoulli(e); kept = _to_copy(b, bool); wide = _to_copy(kept, float32); y = mul(x, wide)
        b = bernoulli(e); kept = _to_copy(b, bool); y = mul(x, b)

    It lies where the copy lay: either way both are there at one time with the narrow one.
    """
    triples = zip(program.nodes, program.nodes[1:], program.nodes[2:], strict=False)
    copied = [triple for triple in triples if _are_copies(*triple)]
    held = _held(program) if copied else frozenset()
    found = [(drawn, wide) for drawn, narrow, wide in copied if _is_round_trip(drawn, narrow, wide, held)]
    if not found:
        return program
    draft, dropped = Draft(program), {wide for _, wide in found}
    for drawn, wide in found:
        draft.move(drawn.results()[0].tensor.storage, wide.results()[0].tensor.storage)
    sources = {wide: drawn.results()[0] for drawn, wide in found}
    for node in program.nodes:
        if node in dropped:
            draft.substitute(node.results()[0], draft.current(sources[node]))
        else:
            draft.take(node)
    return draft.finish()


def _are_copies(_: Node, narrow: Node, wide: Node) -> bool:
    return narrow.target is _to_copy and wide.target is _to_copy


def _is_round_trip(drawn: Node, narrow: Node, wide: Node, held: frozenset[int]) -> bool:
    """Whether a draw is copied to a type that holds it and back, for the first time. They are nodes as `_are_copies`
    wants them."""
    holding = holding_type(drawn)
    if holding is None or wide.recomputed:
        return False
    (value,), (kept,), (again,) = drawn.results(), narrow.results(), wide.results()
    if narrow.args != (value,) or wide.args != (kept,) or holding != kept.tensor.dtype:
        return False
    lies_alike = value.tensor.lies_like(again.tensor) and value.tensor.offset == again.tensor.offset
    return lies_alike and held.isdisjoint({value.tensor.storage, again.tensor.storage})


def _held(program: Program) -> frozenset[int]:
    """Storages that are returned or written."""
    written = {value.tensor.storage for node in program.nodes for value in written_values(node)}
    return frozenset(program.output_storages() | written)


def _make_again(draft: Draft, drawn: Node, chain: Sequence[Node], copy: Value) -> None:
    """From here on, what is made of a copy stands for what was drawn, and for what was made of that."""
    (value,) = drawn.results()
    wide = draft.value(f"{value.name}_again", value.tensor)
    draft.nodes.append(replace(_copy(copy, wide, drawn), phase=Phase.BACKWARD, recomputed=True))
    draft.substitute(value, wide)
    storages = {value.tensor.storage: wide.tensor.storage}
    for node in chain:
        again = node.with_operands(draft.current)
        outputs: list[Value | None] = []
        for result in node.outputs:
            if result is None:
                outputs.append(None)
                continue
            meta = result.tensor
            if meta.storage not in storages:
                storages[meta.storage] = draft.storage()
            made = Value(draft.name(f"{result.name}_again"), meta.at(storages[meta.storage], meta.offset))
            outputs.append(made)
            draft.substitute(result, made)
        draft.nodes.append(replace(again, outputs=tuple(outputs), phase=Phase.BACKWARD, recomputed=True))
