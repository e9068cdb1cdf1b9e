"""Which part of a program only computes the copies into its inputs, and when each piece of it could run.

    g = mm(x, e); h = mm(e, p); n = norm(h)         arithmetic   d = mul(g, 0.1); q = sub(p, d)
    d = mul(g, 0.1); q = sub(p, d); copy_(p, q)     group        d, q, copy_(p, q): could run once `h` has read p

The *arithmetic* of updates is the largest set of nodes, each read by nodes of the set and by copies back only, that
work element by element, on numbers, or list index by list index; names of operators play no part. What remains is the
*frame*, whose order stands, but for checks: they run as soon as what they look at is there. A *group* is the copies
and the arithmetic that share more than numbers; the earliest position of a group is that of the last node of the frame
that it needs: the makers of what it reads, the last reader of each input that it writes, the last check.

Cost: O(nodes + operands), and reads of each written input times copies into it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dovetail.analysis.destinations import is_copy_back
from dovetail.analysis.reads import can_fail, is_view
from dovetail.analysis.union_find import UnionFind
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Value, meta_symbols, values_in
from dovetail.ops.facts import facts_of, is_copy, writes_of
from dovetail.ops.prims import FunctionalForm
from dovetail.torch_compat.dispatch import Overload, schema_of

_LIST_FAMILIES = ("_foreach_", "_fused_")
_FEW_BYTES = 64


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """nodes: copies and the arithmetic that belongs to them, in program order. ready: position of the last node of the
    frame that must have run. bytes: of the inputs that are written, as far as known.
    """

    nodes: tuple[Node, ...]
    ready: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Updates:
    """What is found.

    arithmetic, copies: see above; `copies` are those that may move. before: what must have run before a node, for each
    that may move; before a copy, all checks besides. hoisted: the position after which a check can run already, and
    the numbers that it looks at. groups: in the order in which they can run, small ones first.
    """

    arithmetic: frozenset[Node]
    copies: frozenset[Node]
    before: dict[Node, tuple[Node, ...]]
    hoisted: dict[Node, int]
    groups: tuple[UpdateGroup, ...]


def find_updates(program: Program) -> Updates:
    """See `Updates`."""
    return _Finder(program).find()


class _Finder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.position = {node: at for at, node in enumerate(program.nodes)}
        self.producers = program.producers()
        self.makers_of_symbols = {name: node for node, names in made_symbols(program).items() for name in names}
        self.makers: dict[Node, list[Node]] = {}
        self.readers: dict[Value, list[Node]] = {}
        for node in program.nodes:
            for value in node.operands():
                self.readers.setdefault(value, []).append(node)
        self.returned = frozenset(values_in(program.outputs))
        outside = program.input_storages()
        backs = [node for node in program.nodes if is_copy_back(node, outside)]
        self.copies_of: dict[int, list[Node]] = {}
        for node in backs:
            self.copies_of.setdefault(_home(node), []).append(node)
        self.readers_of = self._readers_of_contents()
        late = self._read_after_a_copy()
        self.copies = frozenset(node for node in backs if _home(node) not in late)
        self.arithmetic = self._arithmetic(late)
        self.hoisted: dict[Node, int] = {}
        self.before: dict[Node, tuple[Node, ...]] = {}

    def find(self) -> Updates:
        self._hoist_checks()
        for node in self.program.nodes:
            if node in self.arithmetic or node in self.hoisted:
                self.before[node] = tuple(self._makers(node))
            elif node in self.copies:
                self.before[node] = (*self._makers(node), *self._earlier_readers(node))
        return Updates(self.arithmetic, self.copies, self.before, self.hoisted, self._groups())

    # --- who reads what

    def _makers(self, node: Node) -> list[Node]:
        """The nodes that make the operands of a node, and the symbols that it mentions."""
        known = self.makers.get(node)
        if known is None:
            known = self.makers[node] = self._find_makers(node)
        return known

    def _find_makers(self, node: Node) -> list[Node]:
        found = [self.producers[value] for value in node.operands() if value in self.producers]
        if self.makers_of_symbols:
            names = {*node.symbols(), *(name for value in node.results() for name in meta_symbols(value.meta))}
            found += [self.makers_of_symbols[name] for name in sorted(names) if name in self.makers_of_symbols]
        return [maker for maker in dict.fromkeys(found) if maker is not node]

    def _readers_of_contents(self) -> dict[int, list[Node]]:
        """For each storage that is copied into: the nodes that have a value on it as an operand, views left out."""
        found: dict[int, list[Node]] = {storage: [] for storage in self.copies_of}
        for node in self.program.nodes:
            is_back = bool(node.args) and isinstance(node.args[0], Value) and node in self._backs_at(node.args[0])
            skipped = node.args[0] if is_back or is_view(node) else None
            read = {v.tensor.storage for v in node.operands() if v is not skipped and v.is_tensor}
            for storage in read & found.keys():
                found[storage].append(node)
        return found

    def _backs_at(self, target: Value) -> Collection[Node]:
        return self.copies_of.get(target.tensor.storage, ()) if target.is_tensor else ()

    def _read_after_a_copy(self) -> set[int]:
        """Storages of which a part is read after another part was copied into: their copies stay where they are."""
        return {
            storage
            for storage, readers in self.readers_of.items()
            if readers and self.position[readers[-1]] > self.position[self.copies_of[storage][0]]
        }

    def _earlier_readers(self, copy: Node) -> list[Node]:
        """What must run before a copy for the sake of the memory that it writes, in program order."""
        home = _home(copy)
        copies = self.copies_of[home]
        return [*(r for r in self.readers_of[home] if r is not copy), *copies[: copies.index(copy)]]

    # --- arithmetic

    def _arithmetic(self, late: Collection[int]) -> frozenset[Node]:
        found: set[Node] = set()
        for node in reversed(self.program.nodes):
            results = node.results()
            readers = [reader for value in results for reader in self.readers.get(value, ())]
            if not readers or not self.returned.isdisjoint(results):
                continue
            serves = all(reader in found or reader in self.copies for reader in readers)
            if serves and _is_arithmetic(node) and not self._reads_any(node, late):
                found.add(node)
        return frozenset(found)

    def _reads_any(self, node: Node, storages: Collection[int]) -> bool:
        return bool(storages) and any(v.is_tensor and v.tensor.storage in storages for v in node.operands())

    # --- checks

    def _hoist_checks(self) -> None:
        """Find how early checks can run: after the last node in front of them that is more than a few numbers."""
        anchors: dict[Node, int] = {}
        for at, node in enumerate(self.program.nodes):
            if not _may_hoist(node):
                anchors[node] = at
                continue
            anchors[node] = anchor = max((anchors[maker] for maker in self._makers(node)), default=-1)
            if can_fail(node):
                self._hoist(node, anchor)

    def _hoist(self, check: Node, anchor: int) -> None:
        left = [check]
        while left:
            node = left.pop()
            if self.position[node] > anchor and self.hoisted.get(node, anchor + 1) > anchor:
                self.hoisted[node] = anchor
                left += self._makers(node)

    # --- groups

    def _groups(self) -> tuple[UpdateGroup, ...]:
        ready = self._earliest()
        place = {node: number for number, node in enumerate(dict.fromkeys((*self.arithmetic, *self.copies)))}
        joined = UnionFind(len(place))

        def join(one: Node, others: Iterable[Node]) -> None:
            for other in others:
                if other in place:
                    joined.join(place[one], place[other])

        for node in self.arithmetic:
            if not all(map(_is_number, node.results())):
                for value in node.results():
                    join(node, self.readers.get(value, ()))
        for storage, copies in self.copies_of.items():
            if copies[0] not in self.copies:
                continue
            join(copies[0], copies[1:])
            if not _is_number(_target(copies[0])):
                join(copies[0], self.readers_of[storage])
        members: dict[int, list[Node]] = {}
        for node in self.program.nodes:
            if node in place:
                members.setdefault(joined.find(place[node]), []).append(node)
        groups = [
            UpdateGroup(tuple(nodes), max(ready[node] for node in nodes), _written_bytes(nodes, self.copies))
            for nodes in members.values()
            if not self.copies.isdisjoint(nodes)
        ]
        return tuple(sorted(groups, key=lambda group: (group.ready, group.bytes)))

    def _earliest(self) -> dict[Node, int]:
        """For each node: the position, or for what may move, that of the last node of the frame that it needs."""
        last_check = max((self._place(n) for n in self.program.nodes if can_fail(n)), default=-1)
        earliest: dict[Node, int] = {}
        for node in self.program.nodes:
            if node in self.arithmetic:
                needed = self._makers(node)
            elif node in self.copies:
                needed = [*self._makers(node), *self._earlier_readers(node)]
            else:
                earliest[node] = self._place(node)
                continue
            floor = last_check if node in self.copies else -1
            earliest[node] = max((earliest[other] for other in needed), default=-1)
            earliest[node] = max(earliest[node], floor)
        return earliest

    def _place(self, node: Node) -> int:
        return self.hoisted.get(node, self.position[node])


def _home(copy: Node) -> int:
    return _target(copy).tensor.storage


def _target(copy: Node) -> Value:
    target = copy.args[0]
    assert isinstance(target, Value), "a copy back has a target"
    return target


def _is_arithmetic(node: Node) -> bool:
    """Whether a node may be part of an update: it works element by element, on numbers, or list index by list index."""
    facts = facts_of(node.target)
    if not facts.is_pure or writes_of(node):
        return False
    if facts.pointwise or is_view(node) or is_copy(node.target) or all(map(_is_number, node.results())):
        return True
    return _is_of_lists(node) or not any(value.is_tensor for value in node.operands())


def _is_of_lists(node: Node) -> bool:
    target: object = node.target
    if isinstance(target, Prim):
        target = target.run.op if isinstance(target.run, FunctionalForm) else None
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return schema.namespace == "aten" and schema.name.startswith(_LIST_FAMILIES)


def _is_number(value: Value) -> bool:
    """Whether a value is a number, or a tensor of at most one."""
    count = value.tensor.numel() if value.is_tensor else 1
    return isinstance(count, int) and count <= 1


def _may_hoist(node: Node) -> bool:
    """Whether a node may run earlier than it stands, for the sake of a check: it is one, or makes a few numbers."""
    facts = facts_of(node.target)
    if writes_of(node) or facts.draws or facts.reads_generator:
        return False
    if facts.effect:
        return isinstance(node.target, Prim) and node.target.checks  # what others see keeps its order
    sizes = [value.tensor.size_bytes() for value in node.results() if value.is_tensor]
    return all(isinstance(size, int) and size <= _FEW_BYTES for size in sizes)


def _written_bytes(nodes: Collection[Node], copies: Collection[Node]) -> int:
    sizes = [_target(node).tensor.size_bytes() for node in nodes if node in copies]
    return sum(size for size in sizes if isinstance(size, int))
