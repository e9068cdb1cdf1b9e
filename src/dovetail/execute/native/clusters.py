"""Clusters: runs of nodes that one call of machine code carries out.

A program takes no more memory with clusters than without: a call takes memory where a row needs it, and lets it go
(`call_memory`). A run ends where its rows would take more than the program's own peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail.analysis.liveness import input_bytes, last_uses, storage_bytes
from dovetail.execute.native.arrange import OpenRow, rows_of
from dovetail.execute.native.call_memory import CallMemory, call_memory, in_room, with_memory
from dovetail.execute.native.claim_base import own_bytes_of
from dovetail.execute.native.computed import computing_rows
from dovetail.execute.native.costs import cost_of_call, cost_of_nodes, has_large_loops
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.kinds import claim_on, row_of
from dovetail.execute.native.link import linked
from dovetail.execute.native.machine import has_pool
from dovetail.execute.native.memory_text import HANDLE
from dovetail.execute.native.places import Places
from dovetail.execute.native.rows import Address, ReadyRow, RowClaim, Storages
from dovetail.execute.native.runs import Run, reread_storages, runs_of
from dovetail.execute.native.unmade import Unmade, unmade_views
from dovetail.execute.needs import Needs
from dovetail.ir.program import Node, Program, Value, meta_symbols, values_in
from dovetail.ops.facts import written_values

_SIZES = (2, 4096)  # what a size that is not known may be: what a cluster takes is compared for both


@dataclass(frozen=True, slots=True)
class Cluster:
    """first, last: numbers of its nodes, those that run before it included. nodes: that are machine code.

    rows: in order. early: how many of them come before anything is written. made: values whose memory is taken before,
    each with one that lies alike. results: values that get the tensors that the call has made, in order. handles: slots
    of the table: of these tensors, and of what else the call takes. after: how results that are read later get their
    variables: nodes of views and numbers that run then, and values with the one whose variable holds the same tensor.
    counted: values whose version counters move, one for each write. given: those whose memory is that of inputs.
    unbound: results that no variable holds. restored, reads, own_bytes: see `NodeGroup`.
    """

    first: int
    last: int
    nodes: tuple[Node, ...]
    before: tuple[Node, ...]
    rows: tuple[ReadyRow, ...]
    early: int
    made: tuple[tuple[Value, Value], ...]
    results: tuple[Value, ...]
    handles: tuple[int, ...]
    after: tuple[Node | tuple[Value, Value], ...]
    counted: tuple[Value, ...]
    given: tuple[Value, ...]
    unbound: frozenset[Value]
    restored: tuple[Node, ...]
    reads: tuple[tuple[Value, int], ...]
    own_bytes: int


def clusters_of(
    program: Program,
    is_free: Callable[[Node], bool],
    dying: Collection[int] | None = None,
    *,
    rounds: bool = False,
) -> tuple[Cluster, ...]:
    """The clusters of a program.

    is_free: whether a node may be machine code, as far as the caller knows. dying: numbers of inputs that nobody else
    holds; None if it may be any. rounds: whether results may differ by rounding.
    """
    loose, mixed = _storages_of_inputs(program)
    reread = {*reread_storages(program), *mixed}
    claims: dict[Node, RowClaim] = {}
    for node in program.nodes:
        claim = claim_on(node, rounds=rounds) if is_free(node) else None
        if claim is not None and _is_whole(claim) and not _touches(node, reread):
            claims[node] = claim

    def may_show(node: Node) -> bool:
        return is_free(node) and not _touches(node, reread)

    tried = {claim.node: claim for run in runs_of(program, claims, may_show) for claim in run.claims}
    known = {node: claim for node, claim in tried.items() if claim.is_proven()}
    memory = _Memory(program, dying, loose, {**_scratch_of(known.values()), **own_bytes_of(known.values())})
    memory.likely_unmade = unmade_views(program, known, may_show).addresses
    found = [draft for run in runs_of(program, known, may_show) for draft in memory.drafts(run)]
    kept = {claim.node: claim for draft in found for claim in draft.claims}
    return memory.finished(found, unmade_views(program, kept, may_show))


def _scratch_of(claims: Iterable[RowClaim]) -> dict[Node, int]:
    """What operators take from the allocator while they run, by node."""
    nodes = [claim.node for claim in claims if claim.has_scratch]
    needs = Needs({})
    if nodes:
        needs.measure(nodes)
    return {node: needs.need_of(node).scratch_bytes for node in nodes}


def _touches(node: Node, storages: Collection[int]) -> bool:
    return any(v.is_tensor and v.tensor.storage in storages for v in (*node.operands(), *node.results()))


def _is_whole(claim: RowClaim) -> bool:
    """Whether one thread of a cluster does what torch does, and a result that is no loop's has some elements."""
    count = claim.written.tensor.numel()
    if claim.layout is None:
        return all(value.tensor.numel() != 0 for value in claim.made)
    is_small = isinstance(count, int) and count < THREADED
    return has_pool() or is_small or torch.get_num_threads() == 1


class _Memory:
    """Who holds what when, in a program.

    likely_unmade: views that get no variable where all claims are in clusters. scratch: bytes that some nodes take
    while they run.
    """

    def __init__(
        self,
        program: Program,
        dying: Collection[int] | None,
        loose: Collection[int],
        scratch: Mapping[Node, int],
    ) -> None:
        self.program = program
        self.scratch = scratch
        self.numbers = {node: at for at, node in enumerate(program.nodes)}
        self.returned = program.output_storages()
        self.returned_values = frozenset(values_in(program.outputs))
        self.outside = program.input_storages()
        self.shown = self.outside | self.returned
        self.loose = loose
        lent = [v for at, v in enumerate(program.inputs) if dying is not None and at not in dying and v.is_tensor]
        self.held = self.returned | {value.tensor.storage for value in lent}
        self.users: dict[int, list[int]] = {}
        self.last_use: dict[Value, int] = {}
        for at, values in last_uses(program).items():
            self.last_use.update(dict.fromkeys(values, at))
        for at, node in enumerate(program.nodes):
            for storage in dict.fromkeys(_storages(node)):
                self.users.setdefault(storage, []).append(at)
        self.static = {
            v.tensor.storage
            for n in program.nodes
            for v in n.results()
            if v.is_tensor and not any(meta_symbols(v.meta))
        }
        symbols = {name for value in program.values() if value.is_tensor for name in meta_symbols(value.meta)}
        self.sizes = [self._sizes(dict.fromkeys(symbols, size)) for size in (_SIZES if symbols else _SIZES[:1])]
        self.loads = [self._loads(sizes) for sizes in self.sizes]
        self.unmade = Unmade()
        self.likely_unmade: Collection[Value] = ()
        self.rows: dict[tuple[Node, int], list[OpenRow]] = {}

    def _sizes(self, hints: Mapping[str, int]) -> dict[int, int]:
        return {**storage_bytes(self.program, hints), **input_bytes(self.program, hints)}

    def drafts(self, run: Run) -> Iterator[Run]:
        """The parts of a run that are clusters: one, or several where all of it would take more memory. Those that cost
        more than their nodes are left out.
        """
        claims, first, likely = list(run.claims), run.first, len(run.claims)
        while len(claims) > 1 or (claims and claims[0].pays_alone):
            rest = replace(run, first=first, claims=claims)
            count, made = self._longest(rest, likely)
            if count == 1 and claims[0].pays_alone:
                made = self._cluster(rest, claims[:1])
            if made is not None and self._pays(made, claims[:count], rest.views):
                yield replace(rest, claims=claims[:count])
            first = self.numbers[claims[count - 1].node] + 1  # views in between belong to what follows
            claims, likely = claims[count:], 2 * count

    def _longest(self, run: Run, likely: int) -> tuple[int, Cluster | None]:
        """How many claims of a run, from its first on, fit into one cluster, and that; 1 and None where no two do.

        likely: where to look first: longer ones are tried while they fit, then the numbers in between.
        """
        fits, found, short, size = 1, None, len(run.claims) + 1, max(min(likely, len(run.claims)), 2)
        while short - fits > 1:
            made = self._cluster(run, run.claims[:size])
            if made is None:
                short = size
            else:
                fits, found = size, made
            size = min(2 * fits, len(run.claims)) if short > len(run.claims) else (fits + short) // 2
        return fits, found

    def _pays(self, made: Cluster, claims: Sequence[RowClaim], views: Sequence[Node]) -> bool:
        """Whether a cluster costs less than its nodes one by one."""
        if has_large_loops(claims, len(self._rows_of(list(claims)))):
            return True
        inside = [node for node in views if made.first <= self.numbers[node] < made.last]
        views_behind = [step for step in made.after if isinstance(step, Node)]
        behind = sum(not all(value in self.likely_unmade for value in view.results()) for view in views_behind)
        price = cost_of_call(made.rows, made.made, len(made.results), behind)
        return price < cost_of_nodes(claims, inside)

    def finished(self, drafts: Sequence[Run], unmade: Unmade) -> tuple[Cluster, ...]:
        """The clusters of drafts. unmade: views without variables; what they show is read until they are."""
        self.unmade = unmade
        for view, address in unmade.addresses.items():
            self.last_use[address.value] = max(self.last_use.get(address.value, -1), self.last_use[view])
        return tuple(found for run in drafts if (found := self._cluster(run, run.claims)) is not None)

    def _cluster(self, run: Run, claims: list[RowClaim]) -> Cluster | None:
        first, last = run.first, self.numbers[claims[-1].node]
        before, computed = self._before(run, claims, first, last)
        views = [node for node in run.views if first <= self.numbers[node] < last]
        rows = self._rows_of(claims)
        unread = self._unread(rows, first)
        stored = [value for claim in claims for value in claim.made if value.tensor.storage not in unread]
        memory = self._memory(rows, stored, first, last)
        if memory is None:
            return None
        places = Places(claims, [*views, *computed], self.numbers, memory.addresses, self.unmade.addresses)
        taken = [piece.value for piece in memory.pieces if piece.last is None]

        def is_read_after(value: Value) -> bool:
            return self._is_read_after(value, last)

        shaped = places.only_views(taken, is_read_after, self._is_alone)
        pieces = [replace(p, meta=shaped[p.value].tensor) if p.value in shaped else p for p in memory.pieces]
        results = [shaped.get(value, value) for value in taken]
        others = {v.tensor.storage for v in stored} - memory.addresses.keys() - {v.tensor.storage for v in taken}
        made = self._made(claims, others, places)
        known = Storages(unread, self.loose)
        found = {at: row_of(row.claims, known, places.addresses, row.rows) for at, row in enumerate(rows)}
        ready = {
            at: in_room(r, memory.rooms[at]) if at in memory.rooms else r for at, r in found.items() if r is not None
        }
        if made is None or not ready:
            return None
        early = list(dict.fromkeys(check for row in ready.values() for check in row.checks))
        early += computing_rows(computed, claims, self._row_of_one, places.addresses) if computed else []
        finished, slots = linked([*early, *with_memory(ready, pieces)])
        kept = {*results, *(value for value, _ in made)}
        after = places.after(kept, is_read_after, self._is_alone)
        counted = [
            shaped.get(holder := places.holder(c.written), holder)
            for c in claims
            if c.into is not None and c.written.tensor.storage in self.shown
        ]
        unbound = frozenset(places.inside) - kept - {value for step in after for value in _bound(step)}
        nodes, run_nodes = tuple(claim.node for claim in claims), self.program.nodes[first : last + 1]
        holders = dict.fromkeys(each.value for row in finished for each in row.pointers if each is not None)
        own = [row.defines for each in ready.values() for row in each.before if row.defines is not None]
        held = [*(p.value for p in sorted(pieces, key=lambda piece: piece.last is not None)), *own]
        given = tuple(value for value in holders if value.tensor.storage in self.outside)
        return Cluster(
            *(first, last, nodes, before, finished, len(early), tuple(made), tuple(results)),
            tuple(slots[value] + HANDLE for value in held),
            *(tuple(after), tuple(counted), given, unbound),
            self.unmade.before(run_nodes),
            tuple(self.unmade.reads(dict(enumerate(run_nodes, first))).items()),
            memory.own_bytes,
        )

    def _row_of_one(self, claim: RowClaim, addresses: Mapping[Value, Address]) -> ReadyRow | None:
        """The row of a claim by itself."""
        return row_of([claim], Storages((), self.loose), addresses, claim.rows)

    def _before(self, run: Run, claims: list[RowClaim], first: int, last: int) -> tuple[tuple[Node, ...], list[Node]]:
        """The nodes of a part of a run that run before it, and those whose numbers it computes."""
        writes = {}  # by storage, the first node that writes it
        for claim in reversed(claims):
            writes[claim.written.tensor.storage] = self.numbers[claim.node]
        known: set[Value] = set()
        computed, early = [], [node for node in run.before if first <= self.numbers[node] < last]
        for node in run.computed:
            at = self.numbers[node]
            if first <= at < last:
                reads = any(v.is_tensor and writes.get(v.tensor.storage, at) < at for v in node.operands())
                if reads or any(value in known for value in node.operands()):
                    computed.append(node)
                    known.update(node.results())
                else:
                    early.append(node)
        return tuple(sorted(early, key=self.numbers.__getitem__)), computed

    def _unread(self, rows: list[OpenRow], first: int) -> set[int]:
        """Storages in which what rows write is read by one loop of them only."""
        found = set[int]()
        for row in rows:
            own = {self.numbers[claim.node] for claim in row.claims}
            for storage in (row.written if row.is_loop else set()) - self.shown:
                if all(user in own for user in self.users[storage] if user >= first):
                    found.add(storage)
        return found

    def _memory(self, rows: list[OpenRow], stored: Collection[Value], first: int, last: int) -> CallMemory | None:
        """What a call takes for what it stores; None where it is more than the program takes somewhere.

        No more than these nodes do where sizes are not known, or where inputs die: how large their memory is, is not.
        """
        is_known = len(self.sizes) == 1 and self.outside <= self.held
        part = slice(None) if is_known else slice(first, last + 1)
        inner = {value.tensor.storage for value in stored if self._is_inner(value.tensor.storage, last)}
        known = [value for value in stored if not any(meta_symbols(value.meta))]
        results = [value for value in known if value.tensor.storage not in inner]
        unknown = {v.tensor.storage for v in stored} - inner - {v.tensor.storage for v in results}
        room = min(
            max(during[part]) - before[first] - sum(sizes[storage] for storage in unknown)
            for sizes, (before, during) in zip(self.sizes, self.loads, strict=True)
        )
        scratch = [max(each.bytes_in_row(self.scratch.get(each.node, 0)) for each in row.claims) for row in rows]
        rooms = {at: size for at, row in enumerate(rows) for each in row.claims if (size := each.room)}
        return call_memory(rows, inner, results, self.sizes[0], scratch, room, rooms)

    def _is_inner(self, storage: int, last: int) -> bool:
        """Whether nothing behind a node sees a storage of some bytes, which are known."""
        is_known = storage in self.static and self.sizes[0][storage] > 0
        return is_known and storage not in self.shown and self.users[storage][-1] <= last

    def _rows_of(self, claims: list[RowClaim]) -> list[OpenRow]:
        """The rows of claims that stand together, found once."""
        key = (claims[0].node, len(claims))
        if key not in self.rows:
            self.rows[key] = rows_of(claims)
        return self.rows[key]

    def _is_read_after(self, value: Value, last: int) -> bool:
        is_read = value in self.returned_values or self.last_use.get(value, -1) > last
        return is_read and value not in self.unmade.addresses

    def _is_alone(self, value: Value) -> bool:
        """Whether it is returned, and nothing else of its memory is."""
        storage = value.tensor.storage
        return [v for v in values_in(self.program.outputs) if v.is_tensor and v.tensor.storage == storage] == [value]

    def _loads(self, sizes: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """What is held before each node runs, and while it does, above what is there before the first."""
        before: list[int] = []
        during: list[int] = []
        held = 0
        seen = set(self.outside)
        for at, node in enumerate(self.program.nodes):
            before.append(held)
            made = {v.tensor.storage for v in node.results() if v.is_tensor} - seen
            seen |= made
            held += sum(sizes[storage] for storage in made)
            during.append(held + self.scratch.get(node, 0))
            gone = {s for s in _storages(node) if self.users[s][-1] == at and s not in self.held}
            held -= sum(sizes.get(storage, 0) for storage in gone)
        return before, during

    def _made(
        self, claims: list[RowClaim], stored: Collection[int], places: Places
    ) -> list[tuple[Value, Value]] | None:
        """Results that get memory before the call, each with a value that lies alike and has a variable; None where
        one has none.
        """
        made: list[tuple[Value, Value]] = []
        for claim, result in [(each, value) for each in claims for value in each.made]:
            if result.tensor.storage not in stored:
                continue
            meta, bound = result.tensor, {value for value, _ in made}
            like: Value | None = None
            for operand in claim.operands:
                source = places.roots.get(operand, operand) if isinstance(operand, Value) else None
                if source is None or not source.is_tensor or (source in places.inside and source not in bound):
                    continue
                if source in self.unmade.addresses:
                    continue
                if (source.tensor.shape, source.tensor.stride) == (meta.shape, meta.stride):
                    like = source
                    break
            if like is None:
                return None
            made.append((result, like))
        return made


def _storages_of_inputs(program: Program) -> tuple[Collection[int], Collection[int]]:
    """Storages of several inputs: those that are only read (`Storages.loose`), and those that some node writes and in
    which several inputs begin at one place.
    """
    tensors = [value.tensor for value in program.inputs if value.is_tensor]
    counted, places = Counter(m.storage for m in tensors), Counter((m.storage, m.offset) for m in tensors)
    written = {v.tensor.storage for node in program.nodes for v in written_values(node) if v.is_tensor}
    loose = {storage for storage, count in counted.items() if count > 1} - written
    return loose, {storage for (storage, _), count in places.items() if count > 1} & written


def _storages(node: Node) -> list[int]:
    return [v.tensor.storage for v in (*node.operands(), *node.results()) if v.is_tensor]


def _bound(step: Node | tuple[Value, Value]) -> tuple[Value, ...]:
    """The values that get a variable."""
    return step.results() if isinstance(step, Node) else step[:1]
