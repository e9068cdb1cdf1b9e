"""Which tensors of a step share bytes that its program writes: exactly, and cheaply where none do.

Of each tensor the range of addresses is known. Only tensors whose ranges meet are compared element by element (see
`analysis.groups`): columns of one matrix lie apart, though their ranges meet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from dovetail.analysis.groups import overlap_groups
from dovetail.analysis.pairs import may_overlap
from dovetail.analysis.region import Region

_Span: TypeAlias = "tuple[int, int, int]"  # first address, one past the last, number of the tensor


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a program does to its tensors, by number.

    written: it writes these. taken: it reads or writes these; None: all. whole: it names places in the storage of
    these, which may lie outside of the tensor.
    """

    written: frozenset[int]
    taken: frozenset[int] | None = None
    whole: frozenset[int] = frozenset()

    def takes(self, index: int) -> bool:
        """Whether it matters where a tensor lies."""
        return self.taken is None or index in self.taken


@dataclass(slots=True, eq=False)
class Memory:
    """Where the tensors of the calls of one program lie.

    lasting: numbers of tensors that stay from call to call. sizes: for a tensor whose size is known, the bytes from its
    first to the end of its last element.
    """

    accesses: Accesses
    lasting: Collection[int] = ()
    sizes: dict[int, int] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _members: list[list[int]] = field(default_factory=list)

    def shared(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
        """Two tensors that share bytes, of which the first is written; None where there are none.

        From now on, `are_apart` is about those that stay.
        """
        spans = sorted(span for index in range(len(tensors)) if (span := self._span(index, tensors)) is not None)
        stay = set(self.lasting)
        held = list(_clusters(span for span in spans if span[2] in stay))
        self._starts = [start for start, _, _ in held]
        self._ends = [end for _, end, _ in held]
        self._members = [members for _, _, members in held]
        found = [self._shared_within(members, tensors) for _, _, members in _clusters(spans) if len(members) > 1]
        return min((pair for pair in found if pair is not None), default=None)

    def are_apart(self, tensors: Sequence[torch.Tensor], moved: Sequence[int], passing: Sequence[int]) -> bool:
        """Whether tensors that lie elsewhere than before, all of them passing, share no byte that is written.

        passing: numbers of all tensors that do not stay. Those that stay lie where they lay in `shared`.
        """
        spans = [span for index in moved if (span := self._span(index, tensors)) is not None]
        for start, end, index in spans:
            at = bisect_right(self._ends, start)
            while at < len(self._starts) and self._starts[at] < end:
                if any(self._clash(index, other, tensors) for other in self._members[at]):
                    return False
                at += 1
        if self.accesses.written.isdisjoint(passing):
            return True
        others = [span for index in passing if (span := self._span(index, tensors)) is not None]
        return not any(
            one[0] < other[1] and other[0] < one[1] and one[2] != other[2] and self._clash(one[2], other[2], tensors)
            for one in spans
            for other in others
        )

    def _clash(self, one: int, other: int, tensors: Sequence[torch.Tensor]) -> bool:
        written = self.accesses.written
        return (one in written or other in written) and may_overlap(
            self._region(one, tensors[one]), self._region(other, tensors[other])
        )

    def _shared_within(self, members: Sequence[int], tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
        if self.accesses.written.isdisjoint(members):
            return None
        places = list({id(tensors[index]): index for index in sorted(members, reverse=True)}.values())[::-1]
        for group in overlap_groups([self._region(index, tensors[index]) for index in places]):
            together = [places[place] for place in group]
            for index in together if len(together) > 1 else ():
                if index in self.accesses.written:
                    others = [other for other in together if other != index]
                    return index, next((x for x in others if self._clash(index, x, tensors)), others[0])
        return None

    def _span(self, index: int, tensors: Sequence[torch.Tensor]) -> _Span | None:
        """The range of addresses of a tensor; None where it does not matter, and for an empty one."""
        if not self.accesses.takes(index):
            return None
        tensor, size = tensors[index], self.sizes.get(index)
        if index in self.accesses.whole and tensor.numel():
            storage = tensor.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes(), index
        if size is None:
            size = extent(tensor)
        start = tensor.data_ptr()
        return (start, start + size, index) if size else None

    def _region(self, index: int, tensor: torch.Tensor) -> Region:
        region = Region.of_tensor(tensor)
        if index not in self.accesses.whole:
            return region
        storage = tensor.untyped_storage()
        return Region(region.storage, storage.data_ptr(), (storage.nbytes(),), (1,), 1)


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to the end of the last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _clusters(spans: Iterable[_Span]) -> Iterable[tuple[int, int, list[int]]]:
    """Runs of ranges that meet, each with the range of all of it. spans: in order."""
    first, end, members = 0, 0, list[int]()
    for start, stop, index in spans:
        if members and start >= end:
            yield first, end, members
            members = []
        if not members:
            first, end = start, stop
        members.append(index)
        end = max(end, stop)
    if members:
        yield first, end, members


def shared_memory(tensors: Sequence[torch.Tensor], accesses: Accesses) -> tuple[int, int] | None:
    """Two tensors that share bytes, of which the first is written; None where there are none."""
    return Memory(accesses).shared(tensors)
