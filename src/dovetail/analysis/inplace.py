"""Decide, node by node, what a functional program can do in existing memory, and why not elsewhere.

One sweep in program order. When a node is processed, its operands already have places: it may overwrite an operand, or
write into the part of a buffer to which its result will be copied, into the input that receives it, or into memory that
is no longer used; otherwise its results get their own memory. Each choice keeps the invariant of `analysis.buffers`
(the bytes of a value hold its contents up to its last read), so none has to be undone. If a copy can only be avoided by
moving reads of the old contents first, they are moved (`analysis.sink_writes`).

Conditions for writing region W of buffer B at node N, all of them (`analysis.placement` asks):

- B is the program's own, donated, or an input whose copy-back covers W and whose new contents come this way;
- result and memory have the same layout, and no element of the memory shares bytes with another;
- no value in B that overlaps W is read after N; N's other operands do not overlap W, or N is elementwise and they
  coincide with it;
- the caller receives B under one name at most, and not a small part of a larger buffer;
- the operator has an in-place or `out=` form that rounds the same way.

Source: the read-after-write conflicts of destination-passing style, as in Bik et al., "Composable and Modular Code
Generation in MLIR" (2022), on bufferization; with regions in place of buffers. Cost: O(nodes + operands) plus one
overlap question for each value that is read later and lies in a buffer that is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import torch

from dovetail.analysis.buffers import Buffers, Owner
from dovetail.analysis.destinations import copied_value, find_destinations
from dovetail.analysis.inplace_plan import (
    Absorb,
    Action,
    DropCopyBack,
    InplacePlan,
    Kept,
    Reason,
    Share,
    WriteCast,
    WriteOperands,
    WriteOut,
    WritePart,
)
from dovetail.analysis.placement import PlacementLegality, PlacementRequest, PlacementResult, is_small_part, tensors_of
from dovetail.analysis.reads import is_view, last_check_of, note_reads, only_result, other_operands, readers_of
from dovetail.analysis.sink_writes import copy_back_early, order_after
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ops.facts import facts_of, is_copy
from dovetail.ops.over_operands import is_elementwise, may_lie_over
from dovetail.ops.views import is_strided, viewed_meta
from dovetail.ops.writing_forms import (
    copies_or_scatters,
    is_scatter,
    makes_new_memory,
    out_form,
    replaces_a_part,
    view_of_copy,
    writing_form,
    written_operands,
)

_MOST_SINKS = 2
_Attempt: TypeAlias = "Action | PlacementResult | None"


def decide_in_place(
    program: Program, donated: Collection[int] = (), *, commit: bool = False, unshared: Collection[Node] = ()
) -> InplacePlan:
    """The plan for a functional program, which may copy new contents back into its inputs.

    donated: numbers of inputs whose memory may be used. commit: keep one point before which nothing outside is written
    and after which no check of the program can fail. unshared: copies that stay.
    """
    return _Planner(program, donated, commit, unshared).run()


class _Planner:
    def __init__(self, program: Program, donated: Collection[int], commit: bool, unshared: Collection[Node]) -> None:
        self.program = program
        self.unshared = unshared
        self.regrets: set[Node] = set()
        self.buffers = Buffers(program)
        self.destinations = find_destinations(program)
        self.actions: dict[Node, Action] = {}
        self.kept: dict[Node, Kept] = {}
        self.moved: dict[Node, Kept] = {}
        self.given, self.escaping = program.input_storages(), program.output_storages()
        self.sunk: dict[Node, int] = {}
        self.just_died: list[Value] = []
        self.lying: dict[Value, TensorMeta] = {}  # where a value lies that is laid out differently from it says
        self.died_at_home: dict[int, list[Value]] = {}
        self.producers = program.producers()
        self.backs = frozenset(self.destinations.copy_backs)
        self.stay = self.backs | made_symbols(program).keys()
        last_check = last_check_of(program) if commit else None
        self.legality = PlacementLegality(program, self.buffers, self.destinations, last_check)
        self.buffers.place_inputs(program, donated)
        note_reads(self.buffers, self.destinations, program)
        copy_back_early(self.buffers, self.destinations.copy_backs, last_check)

    @cached_property
    def readers(self) -> dict[Value, list[Node | None]]:
        """See `analysis.reads`; few programs ask for it."""
        return readers_of(self.program)

    def run(self) -> InplacePlan:
        """Settle every node."""
        at = 0
        while at < len(self.buffers.order):
            node = self.buffers.order[at]
            if node in self.backs:
                self._copy_back(node)
            elif not all(self.buffers.is_placed(v.tensor.storage) for v in tensors_of(node)) and self._decide(node, at):
                continue  # another node stands here now
            self._allocate(node, at)
            at += 1
        places = {storage: self.buffers.place_of(storage) for storage in self.buffers.values_on}
        order, sunk = tuple(self.buffers.order), tuple(self.sunk)
        return InplacePlan(
            self.program, order, self.actions, self.kept, places, sunk, self.moved, frozenset(self.regrets)
        )

    def _decide(self, node: Node, at: int) -> bool:
        """Choose an action, or note why there is none; True when the node was sunk instead."""
        in_part = node in self.unshared or node in self.destinations.parts or copies_or_scatters(node.target)
        for attempt in (
            *((self._share, self._write_part, self._write_in_copy) if in_part else ()),
            self._write_cast,
            self._write_destination,
            self._write_operands,
            self._write_over_any,
        ):
            outcome = attempt(node, at)
            if isinstance(outcome, PlacementResult):
                if outcome.readers and self._sink(node, outcome.readers):
                    return True
                if outcome.obstacle is not None:
                    self.kept.setdefault(node, outcome.obstacle)
                    returned = outcome.obstacle.reason in (Reason.TWO_TENSORS, Reason.RETURNED)
                    self._regret([*outcome.held, *(node.operands()[:1] if returned else ())])
            elif outcome is not None:
                self.actions[node] = outcome
                self.kept.pop(node, None)
                return False
        return False

    def _regret(self, held: Sequence[Value]) -> None:
        """Note copies left out on which something cannot be written now."""
        for value in held:
            maker = self.producers.get(value)
            while maker is not None and is_view(maker):
                maker = self.producers.get(maker.operands()[0])
            if maker is not None and isinstance(self.actions.get(maker), Share):
                self.regrets.add(maker)

    def _sink(self, node: Node, readers: Sequence[Node]) -> bool:
        if self.sunk.get(node, 0) >= _MOST_SINKS:
            return False
        order = order_after(self.buffers, node, readers, self.stay)
        if order is None:
            return False
        self.buffers.reorder(self.buffers.position[node], order)
        self.sunk[node] = self.sunk.get(node, 0) + 1
        return True

    def _allocate(self, node: Node, at: int) -> None:
        """Memory for the results that have none; what dies at the node is free from then on."""
        is_new = False
        for value in tensors_of(node):
            storage = value.tensor.storage
            if not self.buffers.is_placed(storage):
                owner = Owner.PROGRAM if makes_new_memory(node, value) else Owner.UNKNOWN
                external = storage if storage in self.escaping else None
                self.buffers.allocate(value.tensor, owner, external, self.legality.displacement(node))
                is_new = True
        if is_new:
            self.just_died.clear()
            self.died_at_home.clear()
        if not is_view(node):
            for value in node.operands():
                if self.buffers.last_read.get(value, -1) == at:
                    buffer = self.buffers.buffer_of(value)
                    is_ours = buffer.owner is not Owner.CALLER
                    (self.just_died if is_ours else self.died_at_home.setdefault(buffer.number, [])).append(value)

    # --- what can be done with a node

    def _copy_back(self, node: Node) -> None:
        target, new = node.args[:2]
        assert isinstance(target, Value) and isinstance(new, Value), "a copy back copies a value"
        home = self.buffers.buffer_of(target)
        is_there = self.buffers.buffer_of(new) is home and self.buffers.region(new) == self.buffers.region(target)
        if is_there and new.tensor.dtype == target.tensor.dtype and target.tensor.shape == new.tensor.shape:
            self.actions[node] = DropCopyBack()
            return
        self.kept[node] = self._why_elsewhere(new, target)

    def _why_elsewhere(self, new: Value, target: Value) -> Kept:
        """Why new contents were not made in the memory of their input."""
        maker = self.producers.get(new)
        while maker is not None and isinstance(copied := self.actions.get(maker), Share):
            new = copied.source
            maker = self.producers.get(new)
        if maker is None or new.tensor.storage in self.given or new.tensor.storage in self.escaping:
            return Kept(Reason.IS_NEW, new.name)
        if not new.tensor.lies_like(target.tensor):
            return Kept(Reason.LAYOUT, new.name)
        return self.kept.get(maker, Kept(Reason.NO_FORM, new.name))

    def _share(self, node: Node, at: int) -> _Attempt:
        """A copy that protects nothing: its result is its operand, or a view of that."""
        result = only_result(node)
        if node in self.unshared:
            return PlacementResult(Kept(Reason.READ_LATER))
        source: object = copied_value(node)
        view = view_of_copy(node.target) if source is None else None
        source = node.args[0] if view is not None else source
        if not isinstance(source, Value) or result is None:
            return None
        onto: TensorMeta | None = self.lying.get(source, source.tensor)
        args = node.args[1:]
        if source in self.lying and (view is not None or source.tensor.shape != result.tensor.shape):
            return None
        if view is not None:
            onto = viewed_meta(view, None, args, source.tensor, result.tensor)
        elif source.tensor.shape != result.tensor.shape:
            view, args = torch.ops.aten.expand.default, (list(result.tensor.shape),)
            onto = viewed_meta(view, None, args, source.tensor, result.tensor)
        if onto is None:
            return PlacementResult(Kept(Reason.UNKNOWN_PLACE))
        any_layout = self.legality.is_only_copied(result, self.readers)
        placement = self.legality.check(PlacementRequest(node, at, result, onto, None, any_layout=any_layout))
        if placement.obstacle is not None:
            return placement
        self.legality.put(result, onto)
        if result.tensor.stride != onto.stride:
            self.lying[result] = onto
        return Share(source, view, args, onto.stride)

    def _write_part(self, node: Node, at: int) -> _Attempt:
        """A part of the first operand is replaced: write it there."""
        use = self.destinations.parts.get(node)
        if use is None:
            return PlacementResult(Kept(Reason.UNKNOWN_PLACE)) if is_scatter(node.target) else None
        result = only_result(node)
        assert result is not None, "a part replaced gives a tensor"
        place, source = self.buffers.region_in_place(use.meta), use.source
        is_there = (
            self.buffers.buffer_of(source) is self.buffers.buffer_of(use.base)
            and self.buffers.region(source) == place
            and source.tensor.dtype == use.base.tensor.dtype
        )
        others, writes = () if is_there else (source,), None if is_there and self._is_ours(use.base) else use.meta
        gapped = result.tensor.stride != use.base.tensor.stride
        gapped = gapped and self.legality.is_only_copied(result, self.readers)
        within = None if is_strided(use.part.view) else use.base.tensor
        request = PlacementRequest(node, at, result, use.base.tensor, writes, others, any_layout=gapped, within=within)
        placement = self.legality.check(request)
        if placement.obstacle is not None:
            return placement
        if placement.first_copy and self._is_ours(use.base) and not is_small_part(source, result):
            return PlacementResult(Kept(Reason.OPERAND_OVERLAPS, source.name))
        self.legality.put(result, use.base.tensor)
        if gapped:
            self.lying[result] = use.base.tensor
        return WritePart(use.part, use.args, use.meta, is_there, placement.first_copy)

    def _write_in_copy(self, node: Node, at: int) -> _Attempt:
        """A part is replaced in a copy of what is a part of other memory now."""
        return self.legality.in_copy(node, self.kept.get(node))

    def _write_cast(self, node: Node, at: int) -> _Attempt:
        """A comparison whose result is only converted back: what the comparison in place gives."""
        result, first = only_result(node), node.args[0] if node.args else None
        if result is None or result.tensor.dtype is not torch.bool or not isinstance(first, Value):
            return None
        readers = self.readers.get(result, [])
        form = writing_form(node.target, first.tensor.dtype) if len(readers) == 1 and first.is_tensor else None
        if form is None or not facts_of(node.target).pointwise or form.written != (0,):
            return None
        cast = readers[0]
        made = only_result(cast) if cast is not None and is_copy(cast.target) else None
        if made is None or cast is None or made.tensor.dtype is torch.bool:
            return None
        request = PlacementRequest(node, at, made, first.tensor, first.tensor, other_operands(node, first), True, False)
        placement = self.legality.check(request)
        if placement.obstacle is not None:
            return None
        self.legality.put(made, first.tensor)
        self.buffers.allocate(result.tensor, Owner.UNKNOWN)  # never made
        self.actions[cast] = Absorb()
        return WriteCast(form, cast)

    def _write_operands(self, node: Node, at: int) -> _Attempt:
        """The in-place variant, or the operator of which this is the functional form."""
        tensor = next(tensors_of(node), None)
        form = writing_form(node.target, None if tensor is None else tensor.tensor.dtype)
        written = written_operands(form, node) if form is not None else None
        if form is None or written is None:
            return PlacementResult(Kept(Reason.NO_FORM)) if replaces_a_part(node.target) else None
        results = node.outputs[form.fresh :]
        elementwise = facts_of(node.target).pointwise and len(written) == 1
        result = results[0] if elementwise else None  # over its own operand, it goes through memory as before
        gapped = result is not None and result.tensor.differs_in_strides_alone(written[0].tensor)
        pairs = zip(results, written, strict=True)
        is_free = gapped and result is not None and self.legality.is_only_copied(result, self.readers)
        if not is_free and any(r is None or not r.tensor.lies_like(w.tensor) for r, w in pairs):
            return PlacementResult(Kept(Reason.LAYOUT))
        may_copy = not elementwise and replaces_a_part(node.target)
        requests: list[PlacementRequest] = []
        for result, operand in zip(results, written, strict=True):
            assert result is not None, "checked"
            place, others = operand.tensor, other_operands(node, operand)
            requests.append(PlacementRequest(node, at, result, place, place, others, elementwise, may_copy, gapped))
        placements = [self.legality.check(request) for request in requests]
        for placement, operand in zip(placements, written, strict=True):
            overlaps = placement.obstacle is not None and placement.obstacle.reason is Reason.OVERLAPS_ITSELF
            if overlaps or (placement.readers and (may_copy or not self._is_ours(operand))):
                return placement
        slots: list[Kept | None] = []
        first_copy: list[Value] = []
        for placement, request, operand in zip(placements, requests, written, strict=True):
            if slots:  # what was placed meanwhile counts
                placement = self.legality.check(request)
            slots.append(placement.obstacle)
            if placement.obstacle is None:
                first_copy += [v for v in placement.first_copy if v not in first_copy]
                self.legality.put(request.result, operand.tensor)
        if all(slot is not None for slot in slots):
            return PlacementResult(slots[0])
        if result is not None and gapped:
            self.lying[result] = written[0].tensor
        return WriteOperands(form, tuple(slots), tuple(first_copy), written[0].tensor.stride if gapped else None)

    def _write_destination(self, node: Node, at: int) -> _Attempt:
        """Make the result where it is going to be copied: in an input, or in a part of a buffer."""
        result = only_result(node)
        if result is None:
            return None
        into = self.destinations.into.get(result.tensor.storage)
        use = self.destinations.part_of_source.get(result)
        form = out_form(node.target, result.tensor.device.type) if into is not None or use is not None else None
        if form is None:
            return None
        others = tuple([value for value in node.operands() if value.is_tensor])
        pointwise = is_elementwise(node.target, result.tensor.dtype)
        if into is not None and not self._variant_leads_to(node, into):
            request = PlacementRequest(node, at, result, into.tensor, into.tensor, others, pointwise, False)
            placement = self.legality.check(request)
            if placement.obstacle is not None:
                return placement
            self.legality.put(result, into.tensor)
            return WriteOut(form, into)
        if use is None or not self.buffers.is_placed(use.meta.storage) or self._variant_leads_to(node, use.base):
            return None
        request = PlacementRequest(node, at, result, use.meta, use.meta, others, pointwise, False)
        placement = self.legality.check(request)
        if placement.obstacle is not None:
            self.moved[use.node] = placement.obstacle
            return None
        self.legality.put(result, use.meta)
        return WriteOut(form, use.base, use.part, use.args, use.meta)

    def _write_over_any(self, node: Node, at: int) -> _Attempt:
        """Write over another operand that dies here, or into memory that died since something was last allocated."""
        result = only_result(node)
        form = out_form(node.target, result.tensor.device.type) if result is not None else None
        if result is None or form is None:
            return None
        others = tuple([value for value in node.operands() if value.is_tensor])
        pointwise, over = is_elementwise(node.target, result.tensor.dtype), may_lie_over(node.target, node.args)
        over_operands = others if pointwise else () if over is None else (over,)
        at_home = self.died_at_home.get(home := self.destinations.chain.get(result.tensor.storage, -1), ())
        for place in chain(over_operands, reversed(at_home), reversed(self.just_died)):
            if place in self.lying or self.buffers.is_needed_whole(place, at):
                continue
            buffer = self.buffers.buffer_of(place)
            if not place.tensor.lies_like(result.tensor) or (buffer.owner is Owner.CALLER and buffer.number != home):
                continue
            over_it = pointwise or place is over
            request = PlacementRequest(node, at, result, place.tensor, place.tensor, others, over_it, False)
            if self.legality.check(request).obstacle is None:
                self.legality.put(result, place.tensor)
                return WriteOut(form, place)
        return None

    def _is_ours(self, value: Value) -> bool:
        return self.buffers.buffer_of(value).owner is Owner.PROGRAM

    def _variant_leads_to(self, node: Node, place: Value) -> bool:
        """Whether the in-place variant would write the buffer that `place` lies in anyway."""
        first = node.args[0] if node.args else None
        if not isinstance(first, Value) or not first.is_tensor:
            return False
        is_there = self.buffers.buffer_of(first) is self.buffers.buffer_of(place)
        return is_there and writing_form(node.target, first.tensor.dtype) is not None
