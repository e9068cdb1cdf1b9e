"""Where the values of a cluster lie: which have variables, and what those of the others would hold.

Views do not run: what they show is an address. Only where something behind the cluster reads one does it run, after the
call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dovetail.execute.native.rows import Address, RowClaim
from dovetail.ir.program import Node, TensorMeta, Value


class Places:
    """Of the claims and views of a cluster.

    inside: results of both. addresses: of those that are no new memory, and of what is written. roots: by value that a
    claim writes or gives, the one whose variable would hold the same tensor.
    """

    def __init__(
        self,
        claims: Sequence[RowClaim],
        views: Sequence[Node],
        numbers: Mapping[Node, int],
        within: Mapping[int, Address],
        unmade: Mapping[Value, Address],
    ) -> None:
        """views: and nodes whose numbers are computed. numbers: of nodes. within: where storages lie that only the
        cluster sees. unmade: where views lie that no variable holds.
        """
        self.addresses = dict(unmade)
        self._unmade = unmade
        self.roots: dict[Value, Value] = {}
        self.inside: dict[Value, Node] = {}
        self._within = within
        claimed = {claim.node: claim for claim in claims}
        for node in sorted((*claimed, *views), key=numbers.__getitem__):
            self.inside.update(dict.fromkeys(node.results(), node))
            if node in claimed:
                self._add_claim(claimed[node])
            elif node.results()[0].is_tensor:
                self.addresses.update(shown_addresses(node, self.addresses))

    def _add_claim(self, claim: RowClaim) -> None:
        into = claim.into
        if into is None:
            for value in claim.made:
                self.roots[value] = value
                if value.tensor.storage in self._within:
                    self.addresses[value] = self._within[value.tensor.storage]
            return
        root = self.roots.setdefault(into, into)
        self.roots[claim.result] = root
        self.addresses[claim.result] = self.addresses.get(into, Address(into))

    def holder(self, value: Value) -> Value:
        """The value with a variable in whose memory a value lies."""
        return self.addresses.get(value, Address(value)).value

    def after(
        self, kept: Collection[Value], is_read_after: Callable[[Value], bool], is_alone: Callable[[Value], bool]
    ) -> list[Node | tuple[Value, Value]]:
        """How results that are read later get their variables. kept: those that have one already. is_alone: whether a
        value is the only one that the program returns of its memory: a view of all of this is this, as it lies.
        """
        wanted = {value for value in self.inside if value not in kept and is_read_after(value)}
        for value in filter(self._shows, wanted):
            address = self.addresses[value]
            if address.value in kept and is_alone(value) and _is_all_of(value, address.value):
                self.roots[value] = address.value
        for value, node in reversed(self.inside.items()):
            if value in wanted:
                sources = node.operands() if self._runs(value) else [self.roots[value]]
                wanted.update(source for source in sources if source in self.inside and source not in kept)
        steps: dict[Node | tuple[Value, Value], None] = {}
        for value, node in self.inside.items():
            if value in wanted:
                steps[node if self._runs(value) else (value, self.roots[value])] = None
        return list(steps)

    def only_views(
        self, taken: Collection[Value], is_read_after: Callable[[Value], bool], is_alone: Callable[[Value], bool]
    ) -> dict[Value, Value]:
        """By new memory that is taken, the one value that is read later where that is a view of all of it, in another
        shape say: the tensor is made as this view describes it.
        """
        read: dict[Value, list[Value]] = {value: [] for value in taken}
        for value in self.inside:
            holder = self.holder(value) if value.is_tensor else value
            if holder in read and is_read_after(value):
                read[holder].append(value)
        for address in self._unmade.values():
            read.pop(address.value, None)
        found = {}
        for value, (*others, last) in ((value, views) for value, views in read.items() if views):
            if not others and self._shows(last) and is_alone(last) and _fills(last, value):
                found[value] = last
        return found

    def _shows(self, value: Value) -> bool:
        """Whether a value is a view."""
        return value.is_tensor and self._runs(value) and value in self.addresses

    def _runs(self, value: Value) -> bool:
        """Whether a value that is wanted is a view that runs, and no other name of a tensor."""
        return self.roots.get(value, value) is value


def _is_all_of(view: Value, of: Value) -> bool:
    shown, whole = view.tensor, of.tensor
    return (shown.shape, shown.stride, shown.offset) == (whole.shape, whole.stride, whole.offset)


def _fills(view: Value, of: Value) -> bool:
    """Whether a view shows each byte of new memory once."""
    shown, whole = view.tensor, of.tensor
    is_dense = all(meta.offset == 0 and _is_without_gaps(meta) for meta in (shown, whole))
    return is_dense and (shown.dtype, shown.numel()) == (whole.dtype, whole.numel()) and not shown.overlaps_itself()


def _is_without_gaps(meta: TensorMeta) -> bool:
    """Whether elements lie side by side, in some order, as far as sizes are known; not if there are none."""
    numbers = [(size, step) for size, step in zip(meta.shape, meta.stride, strict=True)]
    known = [(size, step) for size, step in numbers if isinstance(size, int) and isinstance(step, int)]
    return len(known) == len(numbers) and 1 + sum((size - 1) * step for size, step in known) == meta.numel()


def shown_addresses(node: Node, addresses: Mapping[Value, Address]) -> dict[Value, Address]:
    """Where the results of a view lie. addresses: of values without a variable of their own."""
    (of,) = [value for value in node.operands() if value.is_tensor]
    start = addresses.get(of, Address(of))
    found = {}
    for shown in node.results():
        elements = int(shown.tensor.offset) - int(of.tensor.offset)  # type: ignore[arg-type]
        found[shown] = Address(start.value, start.behind + elements * shown.tensor.dtype.itemsize)
    return found
