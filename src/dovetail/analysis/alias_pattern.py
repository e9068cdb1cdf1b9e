"""How the tensors of one call share memory, as far as a program that writes some of them must know.

A *group* is a set of tensors that overlap, of which the program writes at least one: the program reads and writes them
as views of one flat tensor over the bytes that they span. Tensors that share a storage without sharing a byte, and
tensors that share bytes that are never written, are in no group.

    base = torch.zeros(8); x = base[:4]; y = base[2:6]      (x is written)

    flat      0 1 2 3 4 5        float32[6]
    x         0 1 2 3            offset 0
    y             2 3 4 5        offset 2

Within a group a *family* is what autograd knows of the sharing: the views of one tensor. A write that autograd tracks
reaches every member of the family of its target; so such a write joins a family even where it is disjoint.
Source: the term *synthetic base* of AOTAutograd names the same remedy; grouping by exact overlap, byte-typed flat
tensors and the separation of bytes from families are ours.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail.analysis.groups import overlap_groups
from dovetail.analysis.region import Region, address_range
from dovetail.errors import OverlappingMutatedInputs
from dovetail.torch_compat.autograd import version_counter_classes, viewed_tensor
from dovetail.torch_compat.subclasses import is_wrapper


@dataclass(frozen=True, slots=True)
class FlatPlace:
    """A tensor in the flat tensor of its group. offset_bytes: from the start of the flat tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Family:
    """Tensors of a group that autograd sees as views of one.

    base: where that one lies. of: an argument whose base it is; is_argument: that argument is the base itself.
    counter: families with equal numbers count their versions together.
    """

    base: FlatPlace
    of: int
    is_argument: bool
    requires_grad: bool
    is_leaf: bool
    counter: int


@dataclass(frozen=True, slots=True)
class Member:
    """An argument in a group. family: index into the group's families. is_leaf: as autograd has it.

    A view that was made with gradients off, of a tensor that has them, passes for a leaf.
    """

    argument: int
    place: FlatPlace
    family: int
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments over one flat tensor of `length` elements of `dtype`.

    leader: the argument from whose storage the flat tensor is taken; it begins `back` elements of `dtype` before the
    leader does. start: its first element in its storage, or 0 where the program does not care.
    """

    members: tuple[Member, ...]
    families: tuple[Family, ...]
    dtype: torch.dtype
    length: int
    leader: int
    back: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class AliasPattern:
    """The groups of a call, by their first member.

    offsets: (argument, storage offset) where a program depends on it. sizes: those of all arguments, where they differ
    from call to call and there are groups or views. views: arguments that autograd sees as views of another tensor,
    where a program depends on it.
    """

    groups: tuple[Group, ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
    sizes: tuple[Hashable, ...] = ()
    views: frozenset[int] = frozenset()

    @property
    def is_apart(self) -> bool:
        """Whether the inputs are as they are taken to be at first, wherever they lie."""
        return not (self.groups or self.views)

    def __str__(self) -> str:
        told = [
            f"inputs {', '.join(str(m.argument) for m in group.members)} in {group.length} x {group.dtype}"
            for group in self.groups
        ]
        told += [f"views: {', '.join(map(str, sorted(self.views)))}"] if self.views else []
        return "; ".join(told) or "written inputs apart"


APART = AliasPattern()
"""No written input shares memory with another."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a program does to its arguments.

    written: arguments that it writes; tracked: those where autograd follows. reach: for arguments that it addresses by
    their place in the storage (`as_strided` with an offset): the argument, its storage offset when that was seen, and
    the bytes (first, end) of the storage that it addresses then. asked: arguments of which it matters whether autograd
    sees a view of another tensor in them.
    """

    written: frozenset[int] = frozenset()
    tracked: frozenset[int] = frozenset()
    reach: frozenset[tuple[int, int, tuple[int, int]]] = frozenset()
    asked: frozenset[int] = frozenset()

    def merge(self, other: Accesses) -> Accesses:
        """What either does."""
        written, tracked = self.written | other.written, self.tracked | other.tracked
        return Accesses(written, tracked, self.reach | other.reach, self.asked | other.asked)

    def addressed(self) -> frozenset[int]:
        """The arguments that are addressed by their place in the storage."""
        return frozenset(argument for argument, _, _ in self.reach)

    def addresses(self, argument: int, tensor: torch.Tensor) -> tuple[int, int]:
        """The first and one past the last address that the program is known to touch through a real tensor."""
        start, end = address_range(tensor)
        if self.reach:
            offset = int(tensor.storage_offset())
            storage = tensor.data_ptr() - offset * tensor.element_size()
            for index, seen_at, (first, last) in self.reach:
                if index == argument and seen_at == offset:
                    start, end = min(start, storage + first), max(end, storage + last)
        return start, end

    def leaves(self, argument: int, tensor: torch.Tensor) -> bool:
        """Whether the program touches memory through a tensor that lies outside its range."""
        return self.addresses(argument, tensor) != address_range(tensor)

    def needs_base(self, argument: int, tensor: torch.Tensor) -> bool:
        """Whether what the tensor is a view of must be known, because the program addresses the storage of that."""
        is_followed = argument in self.tracked and argument in self.addressed() and tensor.storage_offset() != 0
        return self.leaves(argument, tensor) or (is_followed and viewed_tensor(tensor) is not tensor)

    def views_asked_for(self, arguments: Sequence[object]) -> tuple[int, ...]:
        """Those of the arguments `asked` that are views."""
        tensors = ((i, arguments[i]) for i in sorted(self.asked))
        return tuple([i for i, t in tensors if isinstance(t, torch.Tensor) and viewed_tensor(t) is not t])


def alias_pattern_of(
    arguments: Sequence[object], accesses: Accesses, names: Sequence[str], *, wants_gradient: bool = True
) -> AliasPattern:
    """The alias pattern of real tensors; other arguments are passed over.

    wants_gradient: something is differentiated. Otherwise it does not matter which families count versions together,
    and each is taken to count by itself.
    Raises: OverlappingMutatedInputs when tensors share memory through storages that cannot be taken as one.
    """
    tensors = {i: a for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and not is_wrapper(a)}
    _refuse_related_wrappers(arguments, accesses, names)
    addressed = sorted(accesses.addressed() & accesses.written)
    offsets = tuple((i, int(tensors[i].storage_offset())) for i in addressed if i in tensors)
    groups = []
    for indices in _joined(tensors, accesses):
        alone = len(indices) == 1 and not accesses.needs_base(indices[0], tensors[indices[0]])
        if not alone and not accesses.written.isdisjoint(indices):
            groups.append(_Grouping({i: tensors[i] for i in indices}, accesses, names, wants_gradient).group())
    return AliasPattern(tuple(groups), offsets, views=frozenset(accesses.views_asked_for(arguments)))


def _refuse_related_wrappers(arguments: Sequence[object], accesses: Accesses, names: Sequence[str]) -> None:
    """What autograd knows of views of wrappers is not rebuilt from their parts."""
    wrappers = {i: viewed_tensor(a) for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and is_wrapper(a)}
    for written in accesses.tracked & wrappers.keys():
        for other, base in wrappers.items():
            if other != written and base is wrappers[written]:
                raise OverlappingMutatedInputs(
                    written=names[written],
                    other=names[other],
                    reason="they are tensor subclasses and views of one tensor, and autograd sees the write",
                )


def _joined(tensors: Mapping[int, torch.Tensor], accesses: Accesses) -> list[list[int]]:
    """Arguments by overlap, and by family where a write is followed by autograd."""
    places = [i for i, t in tensors.items() if t.numel()]
    regions = [_reached(i, tensors[i], accesses) for i in places]
    found = [{places[k] for k in group} for group in overlap_groups(regions)]
    families: dict[int, set[int]] = {}
    if accesses.tracked:
        for index in places:
            families.setdefault(id(viewed_tensor(tensors[index])), set()).add(index)
    for family in families.values():
        if not accesses.tracked.isdisjoint(family):
            touching = [group for group in found if not group.isdisjoint(family)]
            found = [group for group in found if group.isdisjoint(family)]
            found.append(set().union(*touching))
    return sorted(sorted(group) for group in found)


def _reached(argument: int, tensor: torch.Tensor, accesses: Accesses) -> Region | torch.Tensor:
    """The tensor, or the range of memory where the program leaves its region."""
    if not accesses.leaves(argument, tensor):
        return tensor
    start, end = accesses.addresses(argument, tensor)
    return Region(Region.of_tensor(tensor).storage, start, (end - start,), (1,), 1)


class _Grouping:
    def __init__(
        self, tensors: Mapping[int, torch.Tensor], accesses: Accesses, names: Sequence[str], wants_gradient: bool
    ) -> None:
        self.wants_gradient = wants_gradient
        self.tensors = tensors
        self.accesses = accesses
        self.names = names
        self.bases = self._bases()
        everything = [*tensors.values(), *self.bases.values()]
        self.dtypes = {t.dtype for t in everything}
        self.unit = max(t.element_size() for t in everything)
        spans = [address_range(t) for t in self.bases.values()]
        spans += [accesses.addresses(i, t) for i, t in tensors.items()]
        self.first, self.end = min(s for s, _ in spans), max(e for _, e in spans)
        self.leader = min(tensors)
        self.is_absolute = not accesses.addressed().isdisjoint(tensors)

    def _bases(self) -> dict[int, torch.Tensor]:
        """Tensors that arguments are views of, by identity, where autograd's knowledge of it can matter.

        It can for a family of several members, or with its base among them, when autograd follows a write to one; and
        where a program addresses the storage, or asks whether there is one.
        """
        needed = [i in self.accesses.asked or self.accesses.needs_base(i, t) for i, t in self.tensors.items()]
        left = {id(viewed_tensor(t)) for t, is_needed in zip(self.tensors.values(), needed, strict=True) if is_needed}
        viewed = {i: viewed_tensor(t) for i, t in self.tensors.items()}
        own = {id(t) for t in self.tensors.values()}
        count: dict[int, int] = {}
        for base in viewed.values():
            count[id(base)] = count.get(id(base), 0) + 1
        is_tracked = not self.accesses.tracked.isdisjoint(self.tensors)
        return {
            id(b): b for b in viewed.values() if id(b) in left or (is_tracked and (count[id(b)] > 1 or id(b) in own))
        }

    def group(self) -> Group:
        leader = self.tensors[self.leader]
        storage_start = leader.data_ptr() - int(leader.storage_offset()) * leader.element_size()
        storage_end = storage_start + leader.untyped_storage().nbytes()
        for index, tensor in self.tensors.items():
            if tensor.is_conj() or tensor.is_neg():
                raise OverlappingMutatedInputs(
                    written=self.names[index],
                    other=self.names[next(i for i in (*self.tensors, index) if i != index or len(self.tensors) == 1)],
                    reason="one of them is a conjugate or negative view, whose values differ from its bytes",
                )
        dtype, unit = (leader.dtype, leader.element_size()) if len(self.dtypes) == 1 else (torch.uint8, 1)
        first = storage_start + (self.first - storage_start) // self.unit * self.unit
        end = first + math.ceil((self.end - first) / self.unit) * self.unit
        if first < storage_start or end > storage_end:
            end = self.end
        if first < storage_start or end > storage_end:
            other = next((i for i in self.tensors if i != self.leader), self.leader)
            raise OverlappingMutatedInputs(
                written=self.names[self.leader],
                other=self.names[other],
                reason="they share memory through different storages, or a view leaves the storage",
            )
        families = self._families(first)
        number = {id(base): k for k, (_, base) in enumerate(families)}
        members = tuple(
            Member(i, _place(t, first), number.get(id(t), number.get(id(viewed_tensor(t)), -1)), t.is_leaf)
            for i, t in sorted(self.tensors.items())
        )
        back = (leader.data_ptr() - first) // unit
        start = (first - storage_start) // unit if self.is_absolute else 0
        length = (end - first) // unit
        return Group(members, tuple(f for f, _ in families), dtype, length, self.leader, back, start)

    def _families(self, first: int) -> list[tuple[Family, torch.Tensor]]:
        of_base: dict[int, tuple[int, torch.Tensor]] = {}  # by identity: an argument and what it is a view of
        for index, tensor in sorted(self.tensors.items()):
            base = self.bases.get(id(viewed_tensor(tensor)), tensor)
            is_own_leaf = tensor.requires_grad and tensor.is_leaf and not base.requires_grad
            if base.dtype != tensor.dtype or is_own_leaf:
                base = tensor
            of_base.setdefault(id(base), (index, base))
        bases = [base for _, base in of_base.values()]
        counters = version_counter_classes(bases) if self.wants_gradient else range(len(bases))
        own = {id(t): i for i, t in self.tensors.items()}
        found: list[tuple[Family, torch.Tensor]] = []
        for (index, base), counter in zip(of_base.values(), counters, strict=True):
            of = own.get(id(base), index)
            place = _place(base, first)
            family = Family(place, of, id(base) in own, base.requires_grad, base.is_leaf, counters.index(counter))
            found.append((family, base))
        return found


def _place(tensor: torch.Tensor, first: int) -> FlatPlace:
    return FlatPlace(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.data_ptr() - first)
