"""Rewrite a functional program into one that reuses its memory, as `analysis.inplace` decides.

    r = index_put(x, [i], v); copy_(x, r)          ->   x.index_put_([i], v)
    s = slice(b, 0, 2, 4); t = add(s, 1)
    r = slice_scatter(b, t, 0, 2, 4)               ->   s = slice(b, 0, 2, 4); t = s.add_(1)
    t = mm(a, w); r = slice_scatter(e, t, 0, 0, 2) ->   p = slice(e, 0, 0, 2); t = mm(a, w, out=p)
    c = clone(a); r = relu(c)                      ->   r = a.relu_()

The rewrite decides nothing. Values keep their names where they still exist; a value whose contents are in place is the
operand that it replaced. Views and copies that are no longer read are removed. Bitwise: the operators run on the same
numbers in the same layout. Can lower the peak of live bytes and never raises it, except where reads had to move first.
Cost: O(nodes + operands).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import torch

from dovetail.analysis.inplace import decide_in_place
from dovetail.analysis.inplace_plan import (
    Absorb,
    Action,
    DropCopyBack,
    InplacePlan,
    Share,
    WriteCast,
    WriteInCopy,
    WriteOperands,
    WriteOut,
    WritePart,
)
from dovetail.analysis.liveness import Need, simulate_peak
from dovetail.analysis.reads import is_view
from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import (
    Node,
    Operand,
    Program,
    Stage,
    Target,
    TensorMeta,
    Value,
    map_operands,
    meta_symbols,
    symbols_in,
    values_in,
)
from dovetail.ir.sizes import Number, Size, SizeExpr, is_dense, shifted
from dovetail.ops.facts import is_copy
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.ops.views import replayed_args, view_node
from dovetail.ops.writing_forms import Part
from dovetail.passes.collection import collection_paused
from dovetail.passes.inplace_report import InplaceReport, report_of
from dovetail.passes.written_inputs import read_written_inputs
from dovetail.torch_compat.dispatch import Overload

aten = torch.ops.aten


_KEPT = 6  # programs


def itself(program: Program) -> Program:
    """The program: what becomes of one where nothing does."""
    return program


def work_in_place(
    program: Program,
    donated: Collection[int] = (),
    *,
    commit: bool = True,
    hints: Mapping[str, Number] | None = None,
    memory: PlanMemory | None = None,
) -> tuple[Program, InplaceReport]:
    """The program of stage IN_PLACE, and what was decided; the program itself where nothing was.

    donated: numbers of inputs whose memory may be used. commit: see `analysis.inplace.decide_in_place`. hints: a number
    for each size symbol, for the bytes of the report.
    """
    if memory is not None and commit and set(donated) == set(memory.donated):
        plan, result = memory.in_place(program)
        return result, report_of(plan, hints, donated)
    plan = choose_plan(program, donated, commit=commit)
    return apply_plan(plan), report_of(plan, hints, donated)


class PlanMemory:
    """How programs work in place, with one point of commitment: worked out once for each.

    For passes that weigh programs against each other, and leave one of them to `work_in_place`. Only the last few are
    kept. donated: numbers of inputs whose memory may be used. need_of: what operators take besides; nothing by default.
    around: the run that a program in place is part of, whose peak counts; the program by default.
    """

    def __init__(
        self,
        donated: Collection[int] = (),
        need_of: Callable[[Node], Need] | None = None,
        around: Callable[[Program], Program] = itself,
    ) -> None:
        self.donated = tuple(donated)
        self.need_of = need_of
        self.around = around
        self._known: OrderedDict[int, tuple[Program, InplacePlan, Program]] = OrderedDict()

    def in_place(self, program: Program) -> tuple[InplacePlan, Program]:
        """The plan for a program, and the program that it describes."""
        known = self._known.get(id(program))
        if known is None:
            plan = choose_plan(program, self.donated, commit=True)
            known = self._known[id(program)] = (program, plan, apply_plan(plan))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(id(program))
        return known[1:]

    def peak_bytes(self, program: Program, dying: Collection[int] = ()) -> int:
        """The simulated peak of a program once it works in place. dying: inputs that nobody else holds, by number."""
        in_place = self.in_place(program)[1]
        run = self.around(in_place)
        given = dying if run is in_place else ()  # what the program is given is made within a longer run
        return simulate_peak(run, dying=given, need_of=self.need_of).peak_bytes


@collection_paused()
def choose_plan(program: Program, donated: Collection[int] = (), *, commit: bool = False) -> InplacePlan:
    """The plan that copies, then allocates, less: without every copy that can go, or with those that let others go."""
    plan = decide_in_place(program, donated, commit=commit)
    if not plan.regrets:
        return plan
    sizes: dict[str, Number] = {name: _A_SIZE for value in program.values() for name in meta_symbols(value.meta)}
    other = decide_in_place(program, donated, commit=commit, unshared=plan.regrets)
    reports = [report_of(found, sizes) for found in (plan, other)]
    costs = [(report.copied_bytes, -report.saved_bytes) for report in reports]
    return plan if costs[0] <= costs[1] else other


_A_SIZE = 64  # for sizes that are not known


@collection_paused()
def apply_plan(plan: InplacePlan) -> Program:
    """The program that a plan describes; what was copied into an input is read there."""
    return read_written_inputs(_Rewriter(plan).run() if plan.actions else plan.program)


class _Rewriter:
    def __init__(self, plan: InplacePlan) -> None:
        self.plan = plan
        self.draft = Draft(plan.program)
        self.nodes = self.draft.nodes
        self._value = self.draft.current
        for value in plan.program.inputs:
            self.draft.substitute(value, value)
        self.hoisted: set[Node] = set()
        self.producers = plan.program.producers()

    def run(self) -> Program:
        """Write every node."""
        for node in self.plan.order:
            action = self.plan.actions.get(node)
            if action is not None:
                self._act(node, action)
            elif node not in self.hoisted:
                self._emit(node)
        program = self.plan.program
        outputs = tuple(map(self.draft.operand, program.outputs))
        nodes = _without_unread(self.nodes, outputs, program)
        return replace(program, stage=Stage.IN_PLACE, nodes=nodes, outputs=outputs)

    def _act(self, node: Node, action: Action) -> None:
        if isinstance(action, WriteOperands):
            self._write_operands(node, action)
        elif isinstance(action, WritePart):
            self._write_part(node, action)
        elif isinstance(action, WriteInCopy):
            self._write_in_copy(node, action)
        elif isinstance(action, Share):
            self._share(node, action)
        elif isinstance(action, WriteOut):
            self._write_out(node, action)
        elif isinstance(action, WriteCast):
            moved = node.with_operands(self._value)
            made = action.cast.outputs[0]
            self.nodes.append(replace(moved, target=action.form.target, outputs=(self._renew(made),)))
        elif isinstance(action, DropCopyBack):
            target = node.args[0]
            assert isinstance(target, Value), "a copy back has a target"
            self._become(node.results(), self._value(target))
        else:
            assert isinstance(action, Absorb), "every action is handled"

    # --- actions

    def _write_operands(self, node: Node, action: WriteOperands) -> None:
        swaps = {value: self._copy(node, value) for value in action.first_copy}
        args = list(node.args)
        places = iter(zip(action.slots, node.outputs[action.form.fresh :], strict=True))
        written: list[Value] = []
        for position in range(len(args)):
            if position not in action.form.written:
                args[position] = map_operands(node.args[position], lambda v: swaps.get(v) or self._value(v))
                continue
            operands = [
                self._value(v) if slot is None else self._copy(node, v, result)
                for v, (slot, result) in zip(values_in(node.args[position]), places, strict=False)
            ]
            written += operands
            args[position] = map_operands(node.args[position], _each(operands))
        kwargs = tuple([(name, map_operands(operand, self._value)) for name, operand in node.kwargs])
        target = action.form.target
        if action.form.returns_written:
            outputs = tuple([self._renew(value, action.stride) for value in node.outputs])
            self.nodes.append(node.applying(target, tuple(args), kwargs, outputs))
            return
        fresh, contents = node.outputs[: action.form.fresh], node.outputs[action.form.fresh :]
        outputs = tuple(map(self._renew, fresh))
        unpack = node.unpack and len(fresh) > 1
        self.nodes.append(node.applying(target, tuple(args), kwargs, outputs, unpack))
        for result, operand in zip(contents, written, strict=True):
            if result is not None:
                self.draft.substitute(result, operand)

    def _write_part(self, node: Node, action: WritePart) -> None:
        base, source = node.args[:2]
        assert isinstance(base, Value) and isinstance(source, Value), "a part is replaced by a value"
        if not action.is_there:
            part = self._view(node, action.part, self._value(base), action.args, action.meta)
            new = self._copy(node, source) if action.first_copy else self._value(source)
            self.nodes.append(replace(node, target=aten.copy_.default, args=(part, new), kwargs=(), outputs=()))
        self._become(node.results(), self._value(base))

    def _write_in_copy(self, node: Node, action: WriteInCopy) -> None:
        base, source = node.args[:2]
        assert isinstance(base, Value) and isinstance(source, Value), "a part is replaced by a value"
        (result,) = node.results()
        made = self._copy(node, base, result)
        part = self._view(node, action.part, made, action.args, action.meta)
        args = (part, self._value(source))
        self.nodes.append(replace(node, target=aten.copy_.default, args=args, kwargs=(), outputs=()))
        self.draft.substitute(result, made)

    def _share(self, node: Node, action: Share) -> None:
        if action.view is None:
            self._become(node.results(), self._value(action.source))
            return
        args = (self._value(action.source), *action.args)
        (result,) = node.results()
        made = Value(result.name, self._in_place(replace(result.tensor, stride=action.stride)))
        self.draft.substitute(result, made)
        self.nodes.append(replace(node, target=action.view, args=args, outputs=(made,)))

    def _write_out(self, node: Node, action: WriteOut) -> None:
        self._hoist(action.out)
        out = self._value(action.out)
        if action.part is not None:
            assert action.meta is not None, "a part has a place"
            out = self._view(node, action.part, out, action.args, action.meta)
        moved = node.with_operands(self._value)
        outputs = tuple(map(self._renew, node.outputs))
        self.nodes.append(moved.applying(action.form, moved.args, (*moved.kwargs, ("out", out)), outputs))

    # --- nodes and values

    def _emit(self, node: Node) -> None:
        outputs = tuple(map(self._renew, node.outputs))
        moved = node.with_operands(self._value)
        first = node.args[0] if node.args else None
        if isinstance(node.target, Overload) and is_view(node) and isinstance(first, Value):
            shift = self._shift(first.tensor)
            if shift != 0:
                moved = replace(moved, args=(moved.args[0], *replayed_args(node.target, node.args, shift)[1:]))
        self.nodes.append(moved.giving(outputs))

    def _hoist(self, value: Value) -> None:
        """Make a view of an input now, if it has not been made yet."""
        if value in self.draft:
            return
        node = self.producers[value]
        for operand in node.operands():
            self._hoist(operand)
        self.hoisted.add(node)
        self._emit(node)

    def _become(self, results: Iterable[Value], value: Value) -> None:
        for result in results:
            self.draft.substitute(result, value)

    def _renew(self, value: Value | None, stride: tuple[Size, ...] | None = None) -> Value | None:
        """A result, described at its place. stride: how it lies there, if not as it did."""
        if value is None:
            return None
        made = value
        if value.is_tensor:
            meta = self._in_place(value.tensor if stride is None else replace(value.tensor, stride=stride))
            made = value if meta is value.tensor else Value(value.name, meta)
        self.draft.substitute(value, made)
        return made

    def _in_place(self, meta: TensorMeta) -> TensorMeta:
        buffer, moved = self.plan.places[meta.storage]
        if buffer.number == meta.storage and moved == 0:
            return meta
        shift = self._shift(meta)
        if buffer.number == meta.storage and shift == 0:
            return meta
        return meta.at(buffer.number, shifted(meta.offset, shift))

    def _shift(self, meta: TensorMeta) -> Size:
        """By how many elements the storage of a value has moved."""
        shift = self.plan.places[meta.storage][1]
        if isinstance(shift, int):
            return shift // meta.dtype.itemsize
        return SizeExpr("floordiv", (shift, meta.dtype.itemsize))

    def _view(self, node: Node, part: Part, base: Value, args: tuple[Operand, ...], meta: TensorMeta) -> Value:
        """A view of `base`, made for `node`."""
        shift = self._shift(meta)
        made = Value(self.draft.name("part", 2), self._in_place(meta))
        args = tuple(map_operands(args, self._value))  # type: ignore[arg-type]
        operands = replayed_args(part.view, (base, *args), shift)
        self.nodes.append(view_node(part.view, part.index, operands, base.tensor, made, node))
        return made

    def _copy(self, node: Node, value: Value, result: Value | None = None) -> Value:
        """A copy of an operand, laid out like it, made for `node`. result: what the copy turns into, if anything."""
        source = self._value(value)
        meta = value.tensor
        place = self._in_place(result.tensor) if result is not None else None
        made = Value(self.draft.name("copy", 2), place or meta.at(self.draft.storage(), 0))
        args: tuple[Operand, ...] = (source, list(meta.shape), list(meta.stride), meta.dtype, meta.device)
        target: Target = COPY_TO_LAYOUT
        if is_dense(meta.shape, meta.stride) and source.tensor.stride == meta.stride:
            target, args = aten.clone.default, (source,)
        self.nodes.append(replace(node, target=target, args=args, kwargs=(), outputs=(made,), unpack=False))
        return made


def _each(values: Iterable[Value]) -> Callable[[Value], Value]:
    """One value after the other, whatever is asked for."""
    left = iter(values)
    return lambda _: next(left)


def _without_unread(nodes: list[Node], outputs: tuple[Operand, ...], before: Program) -> tuple[Node, ...]:
    """The nodes but for views and copies that were read before, or are new, and are not read now.

    Those stay that show a size which only data tell, where it is named.
    """
    read_before = {v.name for node in before.nodes for v in node.operands()}
    read_before.update([v.name for v in values_in(before.outputs)])
    never_read = {v.name for node in before.nodes for v in node.results() if v.name not in read_before}
    read = set(values_in(outputs))
    makers, named = made_symbols(replace(before, nodes=tuple(nodes))), set(symbols_in(outputs))
    kept: list[Node] = []
    for node in reversed(nodes):
        results = node.results()
        is_unread = read.isdisjoint(results) and not any(v.name in never_read for v in results)
        is_named = node in makers and not named.isdisjoint(makers[node])
        if is_unread and not is_named and (is_view(node) or is_copy(node.target)):
            continue
        read.update(node.operands())
        if makers:
            named.update(node.symbols())
        kept.append(node)
    return tuple(reversed(kept))
