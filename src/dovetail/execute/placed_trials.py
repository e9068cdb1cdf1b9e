"""Whether operators that are given memory for their results write there what they would have made, and nothing else.

Nothing in torch promises that, so each kind of call is made once each way, on the same numbers: operands and place lie
in one block of bytes, as in an arena, with bytes between them that nobody may write. The result must be the place,
hold the same bits, and leave every other byte as it was; and the call must take no more from the allocator than the one
that makes its result. What was found is kept for the process.

Cost:   two runs of each kind of call that was not met before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.analysis.liveness import NOTHING, Need
from dovetail.execute.needs import Needs
from dovetail.execute.operator_calls import CallMaker, Described, OperatorCall
from dovetail.execute.operator_runs import run_trials
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.sizes import Number, OrOne
from dovetail.memory.in_arena import Placeable
from dovetail.memory.problem import ALIGNMENT, rounded_up
from dovetail.ops.facts import leaves_contents_open

_FOUND: dict[Hashable, int | None] = {}
"""By call and form: what it takes besides where it writes as it should, None where it does not."""

_SMALL = 8191  # numbers that are drawn; larger tensors repeat them
_BETWEEN = 0xA5


@dataclass(frozen=True, slots=True)
class PlacedNeeds:
    """What nodes need: those that write into places as trials have found, all others as `Needs` knows.

    in_one: the same where all that may lie in places is in one block of memory, of nodes that read two of them.
    """

    needs: Needs
    placed: Mapping[Node, Need]
    in_one: Mapping[Node, Need]

    def need_of(self, node: Node) -> Need:
        """What a node of either kind needs besides operands and results."""
        found = self.placed.get(node)
        if found is not None:
            return found
        apart, together = self.needs.need_of(node), self.in_one.get(node)
        if together is None:
            return apart
        return Need(max(apart.scratch_bytes, together.scratch_bytes), apart.kept_bytes)


def try_places(
    program: Program, hints: Mapping[str, Number], needs: Needs, found: Sequence[Placeable]
) -> tuple[list[Placeable], PlacedNeeds]:
    """Those nodes that write into places what they would make, without more memory; and what all need."""
    needs.measure(program.nodes)
    maker = CallMaker(OrOne(hints), {value: node for node in program.nodes for value in node.results()})
    unknown = {*needs.unknown, *needs.extrapolated}
    trials: dict[Placeable, _PlacedTrial] = {}
    for one in found:
        call = maker.call_of(one.node)
        if (
            call is not None
            and call.is_safe
            and call.device.type == "cpu"
            and one.node not in unknown
            and not needs.need_of(one.node).kept_bytes
        ):
            trials[one] = _PlacedTrial(call, one)
    missing = {trial.key: trial for trial in trials.values() if trial.key not in _FOUND}
    if missing:
        ran = run_trials(list(missing.values()))
        _FOUND.update({key: None if result is None else result[1] for key, result in zip(missing, ran, strict=True)})
    usable, placed = [], {}
    for one, trial in trials.items():
        scratch = _FOUND.get(trial.key)
        if scratch is not None and scratch <= needs.need_of(one.node).scratch_bytes:
            usable.append(one)
            placed[one.placed] = Need(scratch) if scratch else NOTHING
    return usable, PlacedNeeds(needs, placed, _in_one_block(program, hints, usable))


def _in_one_block(program: Program, hints: Mapping[str, Number], usable: Sequence[Placeable]) -> dict[Node, Need]:
    """What nodes need that read two results that may lie in places, where these do."""
    storages = frozenset(storage for one in usable for storage in one.storages)
    writes = {one.node for one in usable}
    nodes = [
        node
        for node in program.nodes
        if node not in writes and len(storages & {v.tensor.storage for v in node.operands() if v.is_tensor}) > 1
    ]
    needs = Needs(hints, in_one=storages)
    needs.measure(nodes)
    return {node: needs.need_of(node) for node in nodes}


@dataclass(slots=True)
class _Prepared:
    """args, kwargs: of the call that makes its results. given, named: of the one that writes them. block: all bytes.
    before: a copy of them. places, shadows: where results are written, in block and copy.
    """

    block: torch.Tensor
    before: torch.Tensor
    args: list[Any]
    kwargs: dict[str, Any]
    given: list[Any]
    named: dict[str, Any]
    places: list[torch.Tensor]
    shadows: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _PlacedTrial:
    """A call, and its node as it is where its results have places. See `operator_runs.Trial`."""

    call: OperatorCall
    one: Placeable

    @property
    def key(self) -> Hashable:
        """Equal for calls that do the same."""
        return (self.call.key, self.one.placed.target, self.call.results)

    def prepare(self) -> _Prepared:
        """Operands and places in one block."""
        values = [value for value in self.one.node.operands() if value.is_tensor]
        described = dict(zip([*values, *self.one.places], self.call.tensors, strict=True))
        offsets, size = dict[Value, int](), ALIGNMENT
        for value, meta in described.items():
            offsets[value] = size
            size += rounded_up(meta.size_bytes, ALIGNMENT) + ALIGNMENT
        block = torch.full((size,), _BETWEEN, dtype=torch.uint8, device="cpu")
        tensors = {value: _within(block, offsets[value], meta) for value, meta in described.items()}
        for value in dict.fromkeys(values):
            _fill(tensors[value], described[value])
        in_order = iter([tensors[value] for value in values])
        args = [_with_tensors(operand, in_order) for operand in self.call.args]
        kwargs = {name: _with_tensors(operand, in_order) for name, operand in self.call.kwargs.items()}
        before = block.clone()
        places = [tensors[value] for value in self.one.places]
        shadows = [_within(before, offsets[value], described[value]) for value in self.one.places]
        return _Prepared(block, before, args, kwargs, *self._placed(args, kwargs, places), places, shadows)

    def _placed(
        self, args: list[Any], kwargs: dict[str, Any], places: list[torch.Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The operands of the node that writes."""
        placed, at = self.one.placed, dict(zip(self.one.places, places, strict=True))
        if placed.args and placed.args[0] is self.one.places[0]:
            return [places[0], *args[:1]][: len(placed.args)], {}
        named = {
            name: at[operand] if isinstance(operand, Value) and operand in at else kwargs[name]
            for name, operand in placed.kwargs
        }
        return args[: len(placed.args)], named

    def run(self, prepared: _Prepared) -> object:
        """The call that writes into the places."""
        return self.one.placed.target(*prepared.given, **prepared.named)

    def judge(self, prepared: _Prepared, results: object) -> bool | None:
        """True where it did what it should."""
        made = results if self.one.placed.unpack and isinstance(results, tuple | list) else (results,)
        if len(made) != len(prepared.places) or not all(map(_is_place, made, prepared.places)):
            return None
        if leaves_contents_open(self.one.node.target):
            return True
        expected = self.one.node.target(*prepared.args, **prepared.kwargs)
        wanted = expected if self.one.node.unpack and isinstance(expected, tuple | list) else (expected,)
        if not all(map(_same_bits, prepared.places, wanted)):
            return None
        for shadow, place in zip(prepared.shadows, prepared.places, strict=True):
            shadow.copy_(place)
        return True if torch.equal(prepared.block, prepared.before) else None


def _within(block: torch.Tensor, offset: int, described: Described) -> torch.Tensor:
    """A tensor like the described one in a block of bytes."""
    made = torch.empty(0, dtype=described.dtype, device="cpu")
    at = offset // described.dtype.itemsize
    return made.set_(block.untyped_storage(), at, described.shape, described.stride)


def _fill(tensor: torch.Tensor, described: Described) -> None:
    """Put numbers of both signs into a tensor; zeros, or what its maker makes, into one of whole numbers."""
    if described.made_by is not None:
        tensor.copy_(described.tensor())
        return
    if described.dtype is not torch.bool and not (described.dtype.is_floating_point or described.dtype.is_complex):
        tensor.zero_()
        return
    drawn = torch.randn(_SMALL, generator=torch.Generator().manual_seed(0), device="cpu")
    numbers = (drawn > 0) if described.dtype is torch.bool else drawn.to(described.dtype)
    count = described.size_bytes // described.dtype.itemsize
    flat = tensor.as_strided((count,), (1,), tensor.storage_offset())
    whole = count // _SMALL
    flat[: whole * _SMALL].view(whole, _SMALL).copy_(numbers.expand(whole, _SMALL))
    flat[whole * _SMALL :].copy_(numbers[: count - whole * _SMALL])


def _with_tensors(operand: object, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(operand, Described):
        return next(tensors)
    if isinstance(operand, list | tuple):
        return [_with_tensors(item, tensors) for item in operand]
    return operand


def _is_place(made: object, place: torch.Tensor) -> bool:
    return isinstance(made, torch.Tensor) and _layout(made) == _layout(place) and made.data_ptr() == place.data_ptr()


def _same_bits(place: torch.Tensor, wanted: object) -> bool:
    if not isinstance(wanted, torch.Tensor) or _layout(place) != _layout(wanted):
        return False
    whole = _WHOLE_NUMBERS[place.dtype.itemsize]
    return torch.equal(place.view(whole), wanted.view(whole))


def _layout(tensor: torch.Tensor) -> Hashable:
    strides = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    return (tuple(tensor.shape), tuple(strides), tensor.dtype)


_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
