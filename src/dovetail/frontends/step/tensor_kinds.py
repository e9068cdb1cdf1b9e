"""Whether the tensors of a call are like those that a step was captured with, and as separate from each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any, TypeAlias

import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.execute.addresses import AddressesOf, addresses_of, addresses_with
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.step.memory import Accesses, Memory, extent
from dovetail.frontends.tensor_kind import TensorKind, difference, kind_of
from dovetail.ir.calling import CallPlan
from dovetail.pipeline.options import Options
from dovetail.reach.levels import picker
from dovetail.torch_compat.dtensors import is_dtensor, local_of, placing_of
from dovetail.torch_compat.guards import SameTensors, may_be_asked
from dovetail.torch_compat.sparse import Form, form_of, parts_of
from dovetail.torch_compat.swapping import hook_tables


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor of a step comes from.

    kind: "state", an object that the step's reachable state holds; "argument", a leaf of the arguments; "gradient", the
    `.grad` of another source; "state matrix" or "argument matrix", a part of a sparse matrix there, which is of this
    form; "local", the local part of another source, which is spread over processes like `placing`. index: among those
    of its kind, for a gradient and a local part among all sources.
    """

    kind: str
    index: int
    part: str = ""
    form: Form | None = None
    placing: Hashable = None

    def moved(self, places: Mapping[int, int]) -> Source:
        """The same, where sources have other places."""
        is_of_source = self.kind in ("gradient", "local")
        return replace(self, index=places[self.index]) if is_of_source and self.index in places else self


_Run: TypeAlias = "tuple[str, Callable[[Sequence[Any]], Sequence[Any]], Sequence[Source]]"  # kind, picks indices
_Marks: TypeAlias = "tuple[bytes, tuple[Any, ...]]"  # addresses, shapes and strides

_gradient, _is_leaf = attrgetter("grad"), attrgetter("is_leaf")


@dataclass(slots=True, eq=False)
class TensorKinds:
    """What is expected of the tensors. sources: one for each. leaves: for each tensor leaf, its place and its source.

    without_gradient: sources whose `.grad` must be None. accesses: what the program does to the memory of the sources.
    sizes: for arguments of symbolic sizes, which they may be. addresses: where tensors lie, see `AddressesOf`.
    """

    sources: list[Source]
    leaves: list[tuple[int, int]]
    without_gradient: list[int]
    accesses: Accesses
    sizes: SizeGuard | None = None
    addresses: AddressesOf = addresses_of
    kinds: list[TensorKind | None] = field(default_factory=list)
    _same: SameTensors | None = None
    _state_ids: dict[int, int] = field(default_factory=dict)
    _hookable: list[int] = field(default_factory=list)
    _passing: list[int] = field(default_factory=list)
    _given: list[int] = field(default_factory=list)
    _checked: _Marks = (b"", ())
    _memory: Memory | None = None
    _runs: list[_Run] = field(init=False)
    _pick_without_gradient: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = field(init=False)
    _pick_leaves: Callable[[Sequence[Any]], Sequence[Any]] = field(init=False)
    _pick_of_leaves: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = field(init=False)
    _distinct: int = field(init=False)

    def __post_init__(self) -> None:
        sources = [source for _, source in self.leaves]
        self._pick_leaves, self._pick_of_leaves = picker([place for place, _ in self.leaves]), picker(sources)
        self._distinct = len(set(sources))
        self._runs = _runs_of(self.sources)
        self._pick_without_gradient = picker(self.without_gradient)

    def tensors(self, state: Sequence[torch.Tensor], leaves: Sequence[Any]) -> list[torch.Tensor] | None:
        """The tensors of a call; None where one is missing, or a gradient is where none may be."""
        found: list[torch.Tensor] = []
        matrices: dict[int, Source] = {}
        for kind, pick, sources in self._runs:
            if kind == "state":
                found += pick(state)
            elif kind == "argument":
                given = pick(leaves)
                if not all(map(isinstance, given, repeat(torch.Tensor))):
                    return None
                found += given
            elif kind == "gradient":
                gradients = list(map(_gradient, pick(found)))
                if any(map(is_, gradients, repeat(None))):
                    return None
                found += gradients
            else:
                for source in sources:
                    part = _part(source, state, leaves, found, matrices)
                    if part is None:
                        return None
                    found.append(part)
        without = self._pick_without_gradient(found)
        if not all(map(_is_leaf, without)):  # whose `.grad` torch would warn of
            return None
        if any(map(is_not, map(_gradient, without), repeat(None))):
            return None
        return found

    def learn(self, tensors: Sequence[torch.Tensor]) -> None:
        """Expect tensors like these."""
        self.kinds = self._kinds_of(tensors)
        lasting = [i for i, source in enumerate(self.sources) if source.kind != "argument"]
        known = lasting if self.sizes is not None else range(len(tensors))
        self._memory = Memory(self.accesses, lasting, {i: extent(tensors[i]) for i in known})
        self.bind(tensors)

    def _kinds_of(self, tensors: Sequence[torch.Tensor]) -> list[TensorKind | None]:
        return [
            kind_of(tensor, has_sizes=self._has_sizes(source))
            for tensor, source in zip(tensors, self.sources, strict=True)
        ]

    def _has_sizes(self, source: Source) -> bool:
        """Whether its sizes are known."""
        return self.sizes is None or source.kind != "argument"

    def _fixed(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors whose sizes are known."""
        if self.sizes is None:
            return tensors
        return [tensor for tensor, source in zip(tensors, self.sources, strict=True) if self._has_sizes(source)]

    def _fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether arguments of symbolic sizes are as expected."""
        return self.sizes is None or (self.kinds == self._kinds_of(tensors) and self.sizes.holds(tensors))

    def bind(self, tensors: Sequence[torch.Tensor]) -> bool:
        """From now on, these are the state; whether they are as expected."""
        assert self._memory is not None, "it has learned"
        if self.kinds != self._kinds_of(tensors) or not self._fit(tensors) or self._memory.shared(tensors):
            return False
        self._same = SameTensors(self._fixed(tensors))
        self._passing = [i for i, source in enumerate(self.sources) if source.kind != "state"]
        self._given = [i for i, source in enumerate(self.sources) if source.kind == "argument"]
        self._hookable = [i for i in self._given if tensors[i].requires_grad]
        self._state_ids = {id(t): i for i, t in enumerate(tensors) if self.sources[i].kind == "state"}
        self._checked = self._marks(tensors)
        return True

    def _marks(self, tensors: Sequence[torch.Tensor]) -> _Marks:
        """What tells whether memory was looked at before: where each tensor lies, and what passes and may vary in size.

        Arguments and gradients do not live on: another one may have the identity of one that is gone. A tensor of the
        state may be bound to other memory (`.data = ...`).
        """
        shapes: tuple[Any, ...] = ()
        if self.sizes is not None:
            shapes = tuple([(tuple(tensors[index].shape), tensors[index].stride()) for index in self._passing])
        return self.addresses(tensors), shapes

    def _moved(self, now: _Marks) -> list[int]:
        """The numbers of tensors whose marks are not as they were."""
        starts = [memoryview(addresses).cast("Q") for addresses, _ in (now, self._checked)]
        moved = {index for index, (a, b) in enumerate(zip(*starts, strict=True)) if a != b}
        moved.update(index for index, a, b in zip(self._passing, now[1], self._checked[1], strict=False) if a != b)
        return sorted(moved)

    def are(self, tensors: Sequence[torch.Tensor], leaves: Sequence[Any]) -> bool:
        """Whether the tensors of a call, in the order of the sources, are as expected. leaves: of the arguments."""
        if self._same is None or not may_be_asked(leaves) or not self._same.still_are(self._fixed(tensors)):
            return False
        if not self._fit(tensors):
            return False
        if self._hookable and any(any(hook_tables(tensors[i])) for i in self._hookable):
            return False  # the state is watched with the reachable state
        if not self._leaves_are(tensors, leaves):
            return False
        if not self.accesses.written:  # wherever they lie
            return True
        marks = self._marks(tensors)
        if marks == self._checked:
            return True
        moved = self._moved(marks)
        if any(self.sources[index].kind != "argument" for index in moved):
            return self.bind(tensors)
        assert self._memory is not None, "it has learned"
        if not self._memory.are_apart(tensors, moved, self._given):
            return False
        self._checked = marks
        return True

    def are_leaves_like(self, leaves: Sequence[Any]) -> bool:
        """Whether the tensors among arguments are of the kinds that are expected, whatever memory they are in."""
        for place, index in self.leaves:
            source = self.sources[index]
            if source.kind != "argument" or place >= len(leaves):  # or it is found elsewhere
                continue
            if kind_of(leaves[place], has_sizes=self._has_sizes(source)) != self.kinds[index]:
                return False
        return True

    def difference(self, state: Sequence[torch.Tensor], leaves: Sequence[Any]) -> str:
        """What is not as expected, for people."""
        for index, source in enumerate(self.sources):
            if source.kind in ("gradient", "local") or source.form is not None:
                continue
            tensor = state[source.index] if source.kind == "state" else leaves[source.index]
            now = kind_of(tensor, has_sizes=self._has_sizes(source))
            name = f"argument {source.index}" if source.kind == "argument" else "a tensor of the state"
            told = difference(self.kinds[index], now, name)
            if told:
                return told
        tensors = self.tensors(state, leaves)
        if self.sizes is not None and tensors is not None and not self.sizes.holds(tensors):
            return self.sizes.reason(tensors, [f"{source.kind} {source.index}" for source in self.sources])
        if any(source.form is not None for source in self.sources):
            return "a sparse matrix has another layout, size or number of values, or tensors share memory"
        if tensors is None and any(source.kind == "local" for source in self.sources):
            return "a gradient or a DTensor is another one, or is spread otherwise"
        return "gradients exist where there were none, or the reverse, or tensors share memory"

    def _leaves_are(self, tensors: Sequence[torch.Tensor], leaves: Sequence[Any]) -> bool:
        """Whether each tensor leaf is the tensor of its source, and of no other."""
        given, expected = self._pick_leaves(leaves), self._pick_of_leaves(tensors)
        if not all(map(is_, given, expected)):
            return False
        ids = set(map(id, given))
        if len(ids) != self._distinct:
            return False
        state = self._state_ids
        return state.keys().isdisjoint(ids) or all(
            state.get(id(leaf), source) == source for leaf, (_, source) in zip(given, self.leaves, strict=True)
        )


def _runs_of(sources: Sequence[Source]) -> list[_Run]:
    """Sources that stand side by side and are found alike. Gradients are those of tensors of runs before."""
    runs: list[_Run] = []
    start = 0
    for end, source in enumerate([*sources[1:], None][: len(sources)], 1):
        kind = sources[start].kind
        if source is not None and source.kind == kind and not (kind == "gradient" and source.index >= start):
            continue
        run = sources[start:end]
        runs.append((kind, picker([each.index for each in run]), run))
        start = end
    return runs


def _part(
    source: Source,
    state: Sequence[Any],
    leaves: Sequence[Any],
    found: Sequence[torch.Tensor],
    matrices: dict[int, Source],
) -> torch.Tensor | None:
    """A tensor that is part of another one; None where that is not as expected. found: the tensors of sources before.
    matrices: the source of each sparse matrix, by its identity.
    """
    if source.form is not None:
        matrix = (state if source.kind == "state matrix" else leaves)[source.index]
        same = matrices.setdefault(id(matrix), source)
        if (same.kind, same.index) != (source.kind, source.index) or not _is_of_form(matrix, source.form):
            return None
        return parts_of(matrix)[source.part]
    whole = found[source.index]
    if not is_dtensor(whole) or placing_of(whole) != source.placing:
        return None
    return local_of(whole)


def sources_of_others(recording: StepRecording) -> list[Source]:
    """Where the tensors of a recording come from that it has found by others: gradients, then local parts."""
    wholes = {part: whole for whole, part in recording.locals.items()}
    parts = range(recording.first_local, len(recording.tensors))
    return [
        *(Source("gradient", index) for index in recording.held),
        *(Source("local", wholes[n], placing=placing_of(recording.tensors[wholes[n]].tensor)) for n in parts),
    ]


def kept_sources(sources: Sequence[Source], cleared: Collection[int]) -> list[int]:
    """The sources that a program needs, by number. cleared: those whose gradient is dropped unseen."""
    dropped = {i for i, source in enumerate(sources) if source.kind == "gradient" and source.index in cleared}
    return [
        i
        for i, source in enumerate(sources)
        if i not in dropped and (source.kind != "local" or source.index not in dropped)
    ]


def _is_of_form(item: Any, form: Form) -> bool:
    return isinstance(item, torch.Tensor) and form_of(item) == form


def expected_tensors(
    recording: StepRecording,
    sources: Sequence[Source],
    kept: Sequence[int],
    given: Sequence[Any],
    plan: CallPlan,
    accesses: Accesses,
    options: Options,
) -> TensorKinds:
    """What is expected of the tensors of a recorded step.

    kept: those that a program takes, by their number. given: leaves of the arguments, and tensors read like these.
    options: of the step.
    """
    tensors = [item.tensor for item in recording.tensors]
    sizes = None
    if recording.dynamic:
        sizes = SizeGuard(tuple(recording.description_of(i) for i in kept), tuple(recording.size_conditions))
    return TensorKinds(
        [sources[i] for i in kept],
        [
            (place, next(i for i in kept if tensors[i] is leaf))
            for place, leaf in enumerate(given)
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        ],
        [g.input for g in plan.gradients if not (g.had or g.is_cleared)],
        accesses,
        sizes,
        addresses_with(options.executors, len(kept)),
    )
