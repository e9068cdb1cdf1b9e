"""A cheap check before each call: do the written inputs share memory as in an earlier call?

`fingerprint` gives equal answers only for calls whose tensors share memory alike, as far as a program with given
`Accesses` can tell: it is `()` when the address range of no written input meets that of another. Cost without overlap:
an address and a comparison per tensor, a sort when several inputs are written; with overlapping ranges: about half a
microsecond more for each tensor in them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import torch

from dovetail.analysis.alias_pattern import Accesses
from dovetail.analysis.region import address_range
from dovetail.torch_compat.autograd import version_counter_classes, viewed_tensor

Fingerprint: TypeAlias = tuple[Hashable, ...]
Placed: TypeAlias = tuple[int, int]
"""An argument by its number, and its address."""


class AliasGuard:
    """The question for a program with these accesses.

    sizes_bytes: for each argument, the bytes from its first to the end of its last element; None when it differs from
    call to call, 0 for a number or an empty tensor. has_numbers: an argument is a number, which may differ as well.
    wants_gradient: something is differentiated, so that it matters which tensors count their versions together.
    """

    def __init__(
        self,
        accesses: Accesses,
        sizes_bytes: Sequence[int | None],
        *,
        has_numbers: bool = False,
        wants_gradient: bool = True,
    ) -> None:
        self._written = accesses.written
        self._tracked = accesses.tracked
        self._accesses = accesses
        self._reach = tuple(sorted(accesses.addressed()))
        self._sizes = {i: size for i, size in enumerate(sizes_bytes) if size != 0}
        self._is_static = all(size is not None for size in self._sizes.values())
        self._is_fixed = self._is_static and not has_numbers
        self._wants_gradient = wants_gradient
        self._order = list(self._sizes)
        is_plain = not (self._reach or accesses.asked)
        self._is_single = len(self._sizes) < 2 and is_plain  # one tensor shares memory with no other
        self._is_simple = self._is_static and is_plain and not self._tracked
        self._static_sizes = [size or 0 for size in self._sizes.values()]
        self._seen: tuple[list[int], Fingerprint] = ([], ())
        only = next(iter(self._written)) if len(self._written) == 1 else None
        self._only_place = self._order.index(only) if only in self._sizes else None

    def fingerprint(self, arguments: Sequence[Any]) -> Fingerprint:
        """What distinguishes this call from those with another alias pattern. arguments: inputs, then constants."""
        if self._is_single:
            return ()
        if not self._is_simple:
            return self._full(arguments)
        starts = [arguments[i].data_ptr() for i in self._order]
        if starts == self._seen[0]:
            return self._seen[1]
        found: Fingerprint = ()
        if self._only_place is None or not self._is_alone(starts, self._only_place):
            clusters = self._clusters(sorted(zip(starts, self._static_sizes, self._order, strict=True)))
            found = tuple([self._description(cluster, arguments) for cluster in clusters])
        if not found:  # the relation of views is part of the answer otherwise, and addresses do not show it
            self._seen = (starts, found)
        return self._with_sizes(found, arguments)

    def _is_alone(self, starts: list[int], place: int) -> bool:
        start = starts[place]
        end = start + self._static_sizes[place]
        meeting = 0
        for other, size in zip(starts, self._static_sizes, strict=True):
            if other < end and other + size > start:
                meeting += 1
        return meeting == 1

    def _full(self, arguments: Sequence[Any]) -> Fingerprint:
        if self._is_static and not self._reach:
            starts = [arguments[i].data_ptr() for i in self._order]
            ranges = list(zip(starts, self._static_sizes, self._order, strict=True))
        else:
            ranges = self._ranges(arguments)
        ranges.sort()
        clusters = self._clusters(ranges)
        found: Fingerprint = tuple([self._description(cluster, arguments) for cluster in clusters])
        offsets = tuple(int(arguments[i].storage_offset()) for i in self._reach)
        is_one_cluster = any(len(cluster) == len(ranges) for cluster in clusters)
        if self._tracked and not is_one_cluster:
            found = (*found, ("views", *self._relatives(arguments)))
        if self._accesses.asked and (views := self._accesses.views_asked_for(arguments)):
            found = (*found, ("as views", *views))
        found = self._with_sizes(found, arguments)
        return (*found, offsets) if offsets else found

    def _with_sizes(self, found: Fingerprint, arguments: Sequence[Any]) -> Fingerprint:
        """A program for shared memory is one for the sizes and numbers at hand."""
        return (*found, *map(size_of, arguments)) if found and not self._is_fixed else found

    def _ranges(self, arguments: Sequence[Any]) -> list[tuple[int, int, int]]:
        ranges = []
        for index, size in self._sizes.items():
            tensor = arguments[index]
            if index in self._reach:
                start, end = self._accesses.addresses(index, tensor)
                ranges.append((start, end - start, index))
            elif size is not None:
                ranges.append((tensor.data_ptr(), size, index))
            elif isinstance(tensor, torch.Tensor) and tensor.numel():
                start, end = address_range(tensor)
                ranges.append((start, end - start, index))
        return ranges

    def _relatives(self, arguments: Sequence[Any]) -> Fingerprint:
        """The families of which a member is written under the eyes of autograd."""
        families: dict[int, list[Placed]] = {}
        for index in self._order:
            tensor = arguments[index]
            if isinstance(tensor, torch.Tensor):
                families.setdefault(id(viewed_tensor(tensor)), []).append((index, tensor.data_ptr()))
        return tuple(
            self._description(family, arguments)
            for family in families.values()
            if len(family) > 1 and not self._tracked.isdisjoint([index for index, _ in family])
        )

    def _clusters(self, ranges: list[tuple[int, int, int]]) -> list[list[Placed]]:
        """The runs of meeting ranges, which are given in order, with a written input in them."""
        end = 0
        for start, size, _ in ranges:
            if start < end:
                break
            end = start + size
        else:
            if not self._reach:
                return []
        clusters: list[list[Placed]] = [[]]
        end = 0
        for start, size, index in ranges:
            if start >= end and clusters[-1]:
                clusters.append([])
            clusters[-1].append((index, start))
            end = max(end, start + size)
        return [cluster for cluster in clusters if self._matters(cluster)]

    def _matters(self, cluster: list[Placed]) -> bool:
        if len(cluster) < 2 and not (cluster and cluster[0][0] in self._reach):
            return False
        return not self._written.isdisjoint([index for index, _ in cluster])

    def _description(self, run: list[Placed], arguments: Sequence[Any]) -> Hashable:
        """Where tensors lie, from the first one on, and what autograd knows of each.

        Where dtypes differ, they are taken for views of bytes, and it matters what room there is around the first.
        """
        first = run[0][1]
        dtype = arguments[run[0][0]].dtype
        is_mixed = False
        rank: dict[int, int] = {}
        bases: list[torch.Tensor] = []
        places: list[Hashable] = []  # of each: index, distance, number of what it is a view of, whether it is that
        for index, start in run:
            tensor = arguments[index]
            base = viewed_tensor(tensor)
            number = rank.get(id(base))
            if number is None:
                number = rank[id(base)] = len(bases)
                bases.append(base)
                is_mixed |= base.dtype is not dtype
            is_mixed |= tensor.dtype is not dtype
            places += (index, start - first, number, base is tensor)  # one flat tuple is the quickest to hash
        described: list[Hashable] = [tuple(places), tuple([_described(base, first) for base in bases])]
        members = [arguments[index] for index, _ in run]
        if self._wants_gradient:
            first_of: dict[int, int] = {}
            classes = version_counter_classes(bases) if len(bases) > 1 else []
            described.append(tuple([first_of.setdefault(number, place) for place, number in enumerate(classes)]))
            described.append(tuple([member.is_leaf for member in members]))
        if is_mixed:
            leader = arguments[min(index for index, _ in run)]
            offset = leader.storage_offset() * leader.element_size()
            described.append((offset % 16, min(leader.untyped_storage().nbytes() - offset, 1 << 40)))
        reread = tuple([i for i, member in enumerate(members) if member.is_conj() or member.is_neg()])
        if reread:
            described.append(("conjugate or negative", reread))
        return tuple(described)


def size_of(argument: object) -> Hashable:
    """Shape and strides of a tensor; a number as it is."""
    if isinstance(argument, torch.Tensor):
        return (tuple(argument.shape), argument.stride())
    return argument if isinstance(argument, Hashable) else None


def _described(base: torch.Tensor, first: int) -> tuple[Hashable, ...]:
    place = (base.data_ptr() - first, tuple(base.shape), base.stride(), base.dtype)
    return (*place, base.requires_grad, base.is_leaf)
