"""Whether two recordings of a step do the same, but for what the first one makes and the second one finds there.

    first:  zeros = zeros_like(w); ...; lerp_(zeros, grad, 0.1)        the state is made, and updated
    later:                         ...; lerp_(exp_avg, grad, 0.1)      the state is there

The recorded operators are walked side by side. Those that only the first one has must be such that they may run before
all others: they make new memory, of values that nothing else computes. Then a program of the second recording, run with
what they make, does what the first call does in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from operator import methodcaller
from types import BuiltinMethodType, MethodWrapperType
from typing import Any, TypeAlias

import numpy as np
import torch

from dovetail.capture.step_sharded import MadeSharded
from dovetail.capture.step_tensors import MadeTensor
from dovetail.frontends.step.drawn_values import is_same_result, kind_of_result
from dovetail.frontends.step.kept import FromPlace
from dovetail.frontends.step.noted_calls import HostCall
from dovetail.frontends.step.recorded import Recorded
from dovetail.frontends.step.write_only import Put
from dovetail.ir.calling import FromConstant, GradientExit
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value
from dovetail.ops.facts import facts_of, written_values
from dovetail.ops.interpret import run_node
from dovetail.torch_compat.modes import autocast_off

_COMPARED = (
    *(int, str, bytes, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(range, np.dtype, BuiltinMethodType, MethodWrapperType),
)
_MADE_OF_PARTS = (slice, partial, methodcaller)
_FEW = 4096
# by value: the tensor, and its place among what is made before each run, if it is on the memory of an array of these
_Constants: TypeAlias = dict[Value, tuple[torch.Tensor, int | None]]


class _Pairs:
    """Which value of one recording is which one of the other; storages go in pairs as well."""

    def __init__(self) -> None:
        self._later: dict[Value, Value] = {}
        self._earlier: dict[Value, Value] = {}
        self._storages: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._constants: tuple[_Constants, _Constants] = ({}, {})

    def add_constants(self, first: Recorded, later: Recorded) -> None:
        """Tensors that nothing reaches: they are paired where they hold the same."""
        self._constants = (_constants_of(first), _constants_of(later))

    def __contains__(self, value: Value) -> bool:
        return value in self._later

    def add(self, one: Value, other: Value) -> bool:
        """Pair two values; whether they can be."""
        if one in self._later or other in self._earlier:
            return self._later.get(one) is other
        if one.is_tensor != other.is_tensor:
            return False
        if one.is_tensor and not self._add_storages(one, other):
            return False
        self._later[one], self._earlier[other] = other, one
        return True

    def _add_storages(self, one: Value, other: Value) -> bool:
        a, b = one.tensor, other.tensor
        if a.layout() != b.layout() or a.offset != b.offset:
            return False
        forth, back = self._storages
        return (
            forth.setdefault(a.storage, b.storage) == b.storage and back.setdefault(b.storage, a.storage) == a.storage
        )

    def alike(self, one: Any, other: Any) -> bool:
        """Whether two operands, rules or trees say the same."""
        if isinstance(one, Value) or isinstance(other, Value):
            return isinstance(one, Value) and isinstance(other, Value) and self._are_paired(one, other)
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(map(self.alike, one, other))
        if isinstance(one, dict):
            return list(one) == list(other) and self.alike(list(one.values()), list(other.values()))
        if isinstance(one, _MADE_OF_PARTS):
            return self.alike(one.__reduce__(), other.__reduce__())
        if is_dataclass(one):
            return all(self.alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one) if f.compare)
        return _is_same_leaf(one, other)

    def draw_the_same(self, first: Recorded, later: Recorded) -> bool:
        """Whether the same is drawn, and computed of that, before a program runs."""
        one, other = first.draws, later.draws
        return self.alike(one.made, other.made) and all(map(is_same_result, one.results, other.results))

    def _are_paired(self, one: Value, other: Value) -> bool:
        if one not in self._later and one in self._constants[0] and other in self._constants[1]:
            (a, drawn), (b, other_drawn) = self._constants[0][one], self._constants[1][other]
            is_drawn = drawn is not None and a.stride() == b.stride()  # in the same way, see `draw_the_same`
            return drawn == other_drawn and (a is b or is_drawn or _hold_the_same(a, b)) and self.add(one, other)
        return self._later.get(one) is other


@dataclass(frozen=True, slots=True)
class OnceOnly:
    """What a first call does and later ones do not.

    nodes: operators that run before the program. host_calls: all calls of the first one, in order.
    """

    nodes: list[Node]
    host_calls: tuple[HostCall, ...]


def once_only(first: Recorded, later: Recorded, found: Mapping[Value, torch.Tensor]) -> OnceOnly | None:
    """What only the first of two recordings does; None where a program of the other one cannot do for both.

    found: by the value that the first one makes, the tensor that the second one has in its place.
    """
    pairs = _Pairs()
    pairs.add_constants(first, later)
    if not _inputs_are_alike(pairs, first, later, found):
        return None
    nodes, others, at, alone = first.recording.recorder.nodes, later.recording.recorder.nodes, 0, list[Node]()
    touched: set[int] = set()
    made = _MadeAlone(first)
    for node in nodes:
        if at < len(others) and _are_one(pairs, node, others[at]):
            at += 1
            touched.update(value.tensor.storage for value in node.operands() if value.is_tensor)
            made.written.update(value.tensor.storage for value in written_values(node) if value.is_tensor)
        elif made.may_run_before(node, touched):
            alone.append(node)
        else:
            return None
    is_made = all(value in made.values for value in found)
    if at < len(others) or not is_made or not _leave_the_same(pairs, first, later):
        return None
    calls = _calls_of_first(pairs, first.host_calls, later.host_calls)
    return None if calls is None else OnceOnly(alone, calls)


class _MadeAlone:
    """What the operators make that only the first recording has. written: storages that others wrote before."""

    def __init__(self, first: Recorded) -> None:
        self._inputs = {*first.recording.inputs, *(value for _, value in first.recording.recorder.constants)}
        self._outer = {value.tensor.storage for value in self._inputs if value.is_tensor}
        self._own: set[int] = set()
        self.values: set[Value] = set()
        self.written: set[int] = set()

    def may_run_before(self, node: Node, touched: set[int]) -> bool:
        """Whether an operator may run before all those that both have. touched: storages that these use before it."""
        facts = facts_of(node.target)
        if facts.draws or facts.effect or isinstance(node.target, Prim) or any(node.symbols()):
            return False
        for value in node.operands():
            if value not in self._inputs and value not in self.values:
                return False
            if value.is_tensor and value.tensor.storage in self.written:
                return False
        for value in written_values(node):
            if value.tensor.storage not in self._own or value.tensor.storage in touched:
                return False
        self._own.update(
            v.tensor.storage for v in node.results() if v.is_tensor and v.tensor.storage not in self._outer
        )
        self.values.update(node.results())
        return True


def _inputs_are_alike(pairs: _Pairs, first: Recorded, later: Recorded, found: Mapping[Value, torch.Tensor]) -> bool:
    if [slot.path for slot in first.slots] != [slot.path for slot in later.slots] or first.leaves != later.leaves:
        return False
    if not pairs.draw_the_same(first, later):
        return False
    places = {id(item.tensor): place for place, item in enumerate(later.recording.tensors)}
    inputs = first.recording.inputs, later.recording.inputs
    counts = len(first.recording.tensors), len(later.recording.tensors)
    for place, item in enumerate(first.recording.tensors):
        other = places.get(id(item.tensor))
        if other is None or not pairs.add(inputs[0][place], inputs[1][other]):
            return False
    if not all(map(pairs.add, inputs[0][counts[0] :], inputs[1][counts[1] :])):
        return False
    return all(
        id(tensor) in places and pairs.add(value, inputs[1][places[id(tensor)]]) for value, tensor in found.items()
    )


def _constants_of(recorded: Recorded) -> _Constants:
    constants = recorded.recording.recorder.constants
    drawn = recorded.draws.tensors.among([tensor for tensor, _ in constants])
    return {value: (tensor, drawn.get(slot)) for slot, (tensor, value) in enumerate(constants)}


def _are_one(pairs: _Pairs, node: Node, other: Node) -> bool:
    """Whether two operators are the same on the same; their results are paired then."""
    if node.target != other.target or node.unpack != other.unpack or len(node.outputs) != len(other.outputs):
        return False
    if not (pairs.alike(node.args, other.args) and pairs.alike(node.kwargs, other.kwargs)):
        return False
    if [x is None for x in node.outputs] != [x is None for x in other.outputs]:
        return False
    results = list(zip(node.results(), other.results(), strict=True))
    return not any(one in pairs for one, _ in results) and all(pairs.add(one, two) for one, two in results)


def _leave_the_same(pairs: _Pairs, first: Recorded, later: Recorded) -> bool:
    """Whether results, gradients, numbers, and what is put into Python objects or called, are the same."""
    one, other = first.recording, later.recording
    known = {id(item.tensor): place for place, item in enumerate(one.tensors)}
    tensors = [known.get(id(item.tensor), -1 - place) for place, item in enumerate(other.tensors)]

    def plain(found: Any) -> Any:
        return _with_inputs(_plain(found), lambda place: tensors[place])

    exits = {place: found for place, found in zip(tensors, other.exits, strict=True) if place >= 0}
    is_bare = all(found is GradientExit.NONE for place, found in zip(tensors, other.exits, strict=True) if place < 0)
    is_same = (
        first.results.structure == later.results.structure
        and len(first.results.leaves) == len(later.results.leaves)
        and is_bare
        and pairs.alike(list(map(_plain, one.exits)), [_plain(exits[n]) for n in range(len(one.tensors))])
        and not (one.moves or other.moves)
        and pairs.alike(list(map(_plain, one.results[: len(other.results)])), list(map(plain, other.results)))
        and pairs.alike(one.left, other.left)
        and pairs.alike(one.flags, list(map(plain, other.flags)))
        and one.left_modes == other.left_modes
        and first.write_only == later.write_only
        and first.results.places == later.results.places
        and pairs.alike(first.results.whole, later.results.whole)
    )
    return is_same and _put_the_same(pairs, first, later)


def _put_the_same(pairs: _Pairs, first: Recorded, later: Recorded) -> bool:
    written = [[(slot.path, which) for slot, which in x.writes] for x in (first, later)]
    made = {
        x.path: x.tree for x in first.made if isinstance(x.tree, FromConstant | FromPlace)
    }  # is there before either runs
    return (
        written[0] == written[1]
        and pairs.alike(first.bound, [(path, tree) for path, tree in later.bound if path not in made])
        and all(pairs.alike(made[path], tree) for path, tree in later.bound if path in made)
        and pairs.alike(first.filled, later.filled)
    )


def _calls_of_first(pairs: _Pairs, first: Sequence[HostCall], later: Sequence[HostCall]) -> tuple[HostCall, ...] | None:
    """What a first run calls after the program of later ones; None where it would call something otherwise."""
    calls, at = list[HostCall](), 0
    for call in first:
        if at < len(later) and _is_same_call(pairs, call, later[at]):
            calls.append(later[at])
            at += 1
        elif call.needs_nothing:
            calls.append(call)
        else:
            return None
    return tuple(calls) if at == len(later) else None


def _is_same_call(pairs: _Pairs, one: HostCall, other: HostCall) -> bool:
    said = [(str(c), c.arguments, _put_by(c), c.before, c.scheduler, c.is_hook) for c in (one, other)]
    return pairs.alike(said[0], said[1]) and one.structure == other.structure


def _with_inputs(rule: Any, place_of: Callable[[int], int]) -> Any:
    """A rule with the places of tensors, if it has any, counted as in the other recording."""
    names = {f.name for f in fields(rule)} if is_dataclass(rule) else set()
    if "input" not in names:
        return rule
    return type(rule)(
        **{f.name: place_of(rule.input) if f.name == "input" else getattr(rule, f.name) for f in fields(rule)}
    )


def _put_by(call: HostCall) -> Any:
    """What a call puts into a container, if that is what it does."""
    put = call.function
    return (put.at, put.trees) if isinstance(put, Put) else None


def _is_same_leaf(one: Any, other: Any) -> bool:
    """Whether two operands of one type, which have no parts, are the same."""
    if isinstance(one, np.ndarray | np.generic):
        return kind_of_result(one) == kind_of_result(other) and is_same_result(one, other)
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    return isinstance(one, _COMPARED) and bool(one == other)


def _plain(found: Any) -> Any:
    """What a result or a gradient is, without the fake that stood for it."""
    if isinstance(found, MadeSharded):
        return (found.layout.key(), found.part.value)
    return found.value if isinstance(found, MadeTensor) else found


def _hold_the_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two small tensors are alike in all that an operator sees."""
    if (a.dtype, a.device, a.shape, a.stride()) != (b.dtype, b.device, b.shape, b.stride()) or a.numel() > _FEW:
        return False
    return a.requires_grad == b.requires_grad and bool(torch.equal(a, b))


def run_beforehand(first: Recorded, nodes: Sequence[Node], wanted: Sequence[Value]) -> list[torch.Tensor]:
    """Run operators of a recording, before anything else, on what is there now. wanted: of what they make."""
    recording = first.recording
    held: dict[Value, Any] = {value: tensor for tensor, value in recording.recorder.constants}
    held.update(
        zip(recording.inputs, [x.tensor for x in recording.tensors] + [x.now for x in recording.numbers], strict=True)
    )
    with torch.no_grad(), autocast_off():
        for node in nodes:
            held.update(run_node(node, held, {}))
    return [held[value] for value in wanted]
