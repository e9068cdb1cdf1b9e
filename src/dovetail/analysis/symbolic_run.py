"""Run a program on value numbers: what each tensor holds and where it lies, without computing a number.

Data movement moves value numbers (`analysis.data_movement`); any other operator gives those of its application, into
new memory or into what it writes (`analysis.value_numbers`). Source: symbolic execution, King (1976).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from dovetail.analysis.data_movement import DataMovement, NumberedTensor, is_view, layout_of, on_new_memory, view_behind
from dovetail.analysis.environment import Bound, Environment, Misfit
from dovetail.analysis.shadow_memory import Storage
from dovetail.analysis.symbolic_contents import Contents
from dovetail.analysis.value_numbers import Application, OperatorCall, Result, ValueNumbers, call_of, compared
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, TensorMeta, Value, values_in
from dovetail.ir.sizes import Number
from dovetail.ops.prims import COPY_TO_LAYOUT, FunctionalForm, ViewScatter
from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of

_COPIES = frozenset({"clone", "lift_fresh_copy", "_to_copy"})
_MOVES_MEMORY = frozenset({"aten::resize", "aten::resize_as", "aten::set"})


@dataclass(slots=True)
class InputMemory:
    """Where the inputs lie. starts: the first value number of each input's storage. extents: bytes of it."""

    starts: list[int] = field(default_factory=list)
    extents: list[int] = field(default_factory=list)


class SymbolicRun(Environment):
    """One run of a program.

    env: what is alive. inputs: what the inputs were bound to. A subclass may look on: its methods `sees_...` are
    called.
    """

    def __init__(self, program: Program, value_numbers: ValueNumbers, hints: Mapping[str, Number]) -> None:
        super().__init__(hints)
        self.program = program
        self.value_numbers = value_numbers
        self.numbering = value_numbers.numbering
        self.moves = DataMovement(self.numbering)
        self.made = made_symbols(program)
        self.unknown = set[str]().union(*self.made.values())
        self.inputs: list[Bound] = []
        self.outputs: list[Bound | None] = []
        self.draws = 0
        self.effects = 0

    def sees_application(self, node: Node, call: OperatorCall, name: Hashable, operands: Sequence[Hashable]) -> None:
        """An application that moves more than value numbers is about to be made."""

    def sees_write(self, node: Node, call: OperatorCall, written: Sequence[NumberedTensor]) -> None:
        """A node is about to write these tensors."""

    def sees_copies(self, node: Node, target: Overload) -> None:
        """A node is about to put copies on new memory."""

    def sees_result(self, value: Value, place: NumberedTensor) -> None:
        """A result or an input lies here."""

    # --- the whole program --------------------------------------------------------------------------------------------

    def start(self, memory: InputMemory) -> None:
        """Lay out the inputs; value numbers of their memory are noted in `memory`, or taken from there."""
        storages: dict[int, tuple[torch.Tensor, Storage]] = {}
        for position, value in enumerate(self.program.inputs):
            if position == len(memory.starts):
                memory.starts.append(self.numbering.new(max(memory.extents[position], 1)))
            start = memory.starts[position]
            if not value.is_tensor:
                self.env[value] = start
                self.inputs.append(start)
                continue
            meta = value.tensor
            if meta.storage not in storages:
                storage = Storage(memory.extents[position], is_input=True)
                storage.hold(start)
                storages[meta.storage] = (torch.empty(storage.size_bytes, dtype=torch.uint8), storage)
            flat, storage = storages[meta.storage]
            place = NumberedTensor(
                flat.view(meta.dtype).as_strided(
                    self.sizes(meta.shape), self.sizes(meta.stride), self.size(meta.offset)
                ),
                storage,
            )
            self.env[value] = place
            self.inputs.append(place)
            self.sees_result(value, place)

    def finish(self) -> None:
        """Note what the outputs are; None for what is not a value. Raises: Misfit."""
        for value in values_in(self.program.outputs):
            if value not in self.env:
                raise Misfit(f"{value.name} is not there")
        self.outputs = [self.env[o] if isinstance(o, Value) else None for o in self.program.outputs]

    def step(self, node: Node) -> None:
        """Run one node. Raises: Misfit; what torch raises when a view operator does not take its operands."""
        self._check_order(node)
        call = call_of(node)
        self.moves.writer = label_of(node)
        results = self._sizes(node, call) or self._results(node, call)
        self.draws += call.draws
        self.effects += call.effect
        self.unknown -= self.made.get(node, frozenset())
        for value, bound in zip(node.outputs, results, strict=False):
            if value is not None and bound is not None:
                self.env[value] = bound
                if isinstance(bound, NumberedTensor):
                    self.sees_result(value, bound)

    def _check_order(self, node: Node) -> None:
        for value in node.operands():
            if value not in self.env:
                raise Misfit(f"it reads {value.name}, which is not there (yet)")
        if self.unknown:
            for name in node.symbols():
                if name in self.unknown:
                    raise Misfit(f"it reads the size {name} before the node that computes it")

    def _sizes(self, node: Node, call: OperatorCall) -> Sequence[Bound | None]:
        """The results of a node that only gives numbers known from sizes; none for any other."""
        results = node.results()
        is_known = node not in self.made and not (call.writes or call.draws or call.effect)
        if not is_known or any(value.is_tensor for value in results):
            return ()
        return [None if value is None else self.concrete(value) for value in node.outputs]

    # --- one node ----------------------------------------------------------------------------------------------------

    def _results(self, node: Node, call: OperatorCall) -> Sequence[Bound | None]:
        target = node.target
        if isinstance(target, Prim) and isinstance(target.run, ViewScatter):
            view = target.run.view
            rest = dict(zip([a.name for a in schema_of(view).arguments[1:]], node.args[2:], strict=False))
            rest |= dict(node.kwargs)
            args = [rest.get(a.name, a.default) for a in schema_of(view).arguments[1:]]
            return [self._scattered(node, view, target.run.index, node.args, args)]
        if target is COPY_TO_LAYOUT:
            meta = _first_meta(node)
            contents = self.moves.read_as(self.place(node.args[0]), meta.dtype)
            return self._deliver(node, call, contents.expanded(self.sizes(meta.shape)))
        if not isinstance(target, Overload):
            is_form = isinstance(target, Prim) and isinstance(target.run, FunctionalForm)
            copied = self._copied(node, call) if is_form else None
            return self._opaque(node, call) if copied is None else copied
        if torch.Tag.inplace_view in tags_of(target) or call.base in _MOVES_MEMORY:
            raise Misfit("it changes its operand's shape or memory")
        moved = self._moved(node, call, target) if call.base.startswith("aten::") else None
        return self._opaque(node, call) if moved is None else moved

    def _moved(self, node: Node, call: OperatorCall, target: Overload) -> Sequence[Bound | None] | None:
        """The results of an operator that only moves numbers; None for any other."""
        name = call.base.removeprefix("aten::")
        operands = [operand for _, operand in call.arguments]
        if is_view(target):
            base = self.place(next((v for v in values_in(operands) if v.is_tensor), None))
            kwargs = {key: self.concrete(operand) for key, operand in node.kwargs}
            return self.moves.views(base, target(*self.concrete(node.args), **kwargs))
        if name == "copy" or (name == "fill" and isinstance(operands[1], Value)):
            like, source = self.place(operands[0]), self.place(operands[1])
            if name == "copy" and not call.writes and not like.region.overlaps_itself():
                self.sees_copies(node, target)
                made = self.moves.scattered(like, source, lambda whole: whole, whole=True)
                return [self._as_described(_first_meta(node), made)]
            contents = self.moves.read_as(source, like.tensor.dtype)
            return self._deliver(node, call, contents.expanded(like.region.shape))
        if name in _COPIES:
            place, dtype = self.place(operands[0]), dict(call.arguments).get("dtype")
            contents = self.moves.read_as(place, dtype if isinstance(dtype, torch.dtype) else place.tensor.dtype)
            return self._deliver(node, call, contents)
        if call.is_empty:
            return self._deliver(node, call, self._undefined(node, call))
        viewed = view_behind(target, "_copy", 1)
        if viewed is not None:
            return self._deliver(node, call, *self._viewed_copies(node, viewed, operands))
        viewed = view_behind(target, "_scatter", 2)
        if viewed is not None and not call.outs:
            return [self._scattered(node, viewed, None, operands, operands[2:])]
        return None

    def _copied(self, node: Node, call: OperatorCall) -> Sequence[Bound | None] | None:
        """The result of an operator that fills its first operand with the second one; None for any other."""
        operands = [operand for _, operand in call.arguments]
        if call.base not in ("aten::copy", "aten::fill") or not isinstance(operands[1], Value):
            return None
        like, source = self.place(operands[0]), self.place(operands[1])
        contents = self.moves.read_as(source, like.tensor.dtype)
        return self._deliver(node, call, contents.expanded(like.region.shape))

    def _viewed_copies(self, node: Node, viewed: Overload, operands: Sequence[Operand]) -> list[Contents]:
        base = self.place(operands[0])
        if viewed is torch.ops.aten.view.default:  # its copy takes any tensor, as a reshape does
            whole = self.moves.read(base)
            return [whole.reshaped(self.sizes(_first_meta(node).shape))]
        args, kwargs = self._arranged(viewed, operands[1:])
        made: Any = viewed(base.tensor, *args, **kwargs)
        return [
            self.moves.read(NumberedTensor(t, base.storage))
            for t in ([made] if isinstance(made, torch.Tensor) else made)
        ]

    def _arranged(self, op: Overload, operands: Sequence[Operand]) -> tuple[list[Any], dict[str, Any]]:
        """Operands for all arguments of an operator but the first one, as it takes them."""
        found = list(zip(schema_of(op).arguments[1:], map(self.concrete, operands), strict=True))
        return [o for a, o in found if not a.kwarg_only], {a.name: o for a, o in found if a.kwarg_only}

    def _scattered(
        self, node: Node, view: Overload, index: int | None, operands: Sequence[Operand], rest: Sequence[Operand]
    ) -> NumberedTensor:
        base, meta = self.place(operands[0]), _first_meta(node)
        is_prim = isinstance(node.target, Prim)
        whole = not is_prim
        args, kwargs = self._arranged(view, rest)
        part = partial(_part, view, index, args, kwargs)
        result = self.described(meta)
        if not is_prim and any(step == 0 and size > 1 for size, step in zip(*base.layout[:2], strict=True)):
            base = self._filled(result, self.moves.read(base))  # expanded: torch copies each element
        made = self.moves.scattered(base, self.place(operands[1]), part, whole=whole)
        if is_prim:
            return made  # a primitive keeps the strides of its operand, whatever is said of them
        return self._as_described(meta, made)

    def _as_described(self, meta: TensorMeta, made: NumberedTensor) -> NumberedTensor:
        """A copy of a whole storage, or of the tensor alone where it is described differently."""
        result = self.described(meta)
        if layout_of(result) == made.layout and self.size(meta.offset) == made.region.offset:
            return made
        return self._filled(result, self.moves.read(made))

    def _deliver(self, node: Node, call: OperatorCall, *contents: Contents) -> Sequence[Bound | None]:
        """Put contents where the form of the operator puts its results: into what it writes, or into new memory."""
        written = [place for _, place in self.written(call)]
        if not written:
            if isinstance(node.target, Overload):
                self.sees_copies(node, node.target)
            return [
                None if v is None else self._fresh(v, held) for v, held in zip(node.outputs, contents, strict=False)
            ]
        self.sees_write(node, call, written)
        for place, held in zip(written, contents, strict=True):
            self._fill(place, held)
        return written

    def _undefined(self, node: Node, call: OperatorCall) -> Contents:
        """What an operator that promises nothing leaves in its result: the same in both programs, told by its name."""
        meta = _first_meta(node)
        shape = self.sizes(meta.shape)
        name = (call.name, next(value.name for value in node.results()))
        made = self.value_numbers.make(name, self.operands(call), 1, label_of(node))
        known = made.results[0] or Result(self.numbering.new(shape.numel() * meta.dtype.itemsize), None)
        made.results[0] = known
        return Contents.run(tuple(shape), meta.dtype.itemsize, known.start)

    # --- operators by value number ----------------------------------------------------------------------------------

    def _opaque(self, node: Node, call: OperatorCall) -> Sequence[Bound | None]:
        """Fresh results into new memory, the others into what the operator writes."""
        operands, written = self.operands(call), self.written(call)
        name = self._name(node, call, written)
        self.sees_application(node, call, name, operands)
        places = [place for _, place in written]
        if places:
            self.sees_write(node, call, places)
        fresh, handed_back = _returned(node, call)
        count = len(fresh) + len(written)
        made = self.value_numbers.make(name, operands, count, label_of(node))
        made.results.extend([None] * (count - len(made.results)))
        bound = {i: self._fresh_result(made, k, v) for k, (i, v) in enumerate(fresh) if v is not None}
        for index, place in enumerate(places, len(fresh)):
            self._written_result(call, made, index, place)
        bound.update({i: place for i, alias in handed_back for name, place in written if name == alias})
        return [bound.get(i) for i in range(len(node.outputs))]

    def _name(self, node: Node, call: OperatorCall, written: Sequence[tuple[str, NumberedTensor]]) -> Hashable:
        """The canonical name, with its turn among draws and effects, how it rounds, and sizes that it finds out."""
        turn = self.draws if call.draws or call.reads_generator else None
        first = next((v for v in values_in(_operands(call)) if v.is_tensor), None)
        lies_there = call.in_place or any(
            place.overlaps(self.place(v)) for _, place in written for v in values_in(_operands(call)) if v.is_tensor
        )
        own_bits = lies_there and first is not None and call.rounds_by_place(self.place(first).tensor.dtype)
        own_bits = own_bits or (call.draws and call.in_place and not call.is_fill)
        return (call.name, turn, self.effects if call.effect else None, own_bits, *sorted(self.made.get(node, ())))

    def operands(self, call: OperatorCall) -> tuple[Hashable, ...]:
        """Each argument as what it denotes."""
        return tuple(
            compared(operand, self._looks if index == 0 and call.reads_only_shape else self.sees, self.hints)
            for index, operand in enumerate(_operands(call))
        )

    def sees(self, value: Value) -> Hashable:
        """What a reader sees of a value."""
        bound = self.env[value]
        return (self.moves.read(bound).ident, bound.layout, bound.bits) if isinstance(bound, NumberedTensor) else bound

    def _looks(self, value: Value) -> Hashable:
        """What a value looks like."""
        bound = self.env[value]
        return bound.layout if isinstance(bound, NumberedTensor) else bound

    def _fresh_result(self, made: Application, index: int, value: Value) -> Bound:
        known = made.results[index]
        if not value.is_tensor:
            known = made.results[index] = known or Result(self.numbering.new(1), None)
            return known.start
        tensor = self.described(value.tensor)
        layout = layout_of(tensor)
        known = known or Result(self.numbering.new(tensor.numel() * tensor.dtype.itemsize), layout)
        made.results[index] = known
        if known.layout != layout:
            raise Misfit(f"{value.name} is described as {layout}, and was {known.layout} in {made.label}")
        return self._fresh(value, Contents.run(layout[0], tensor.dtype.itemsize, known.start))

    def _written_result(self, call: OperatorCall, made: Application, index: int, place: NumberedTensor) -> None:
        layout = place.layout
        known = made.results[index] or Result(self.numbering.new(place.region.count * layout[2].itemsize), layout)
        made.results[index] = known
        if known.layout is None or known.layout[0] != layout[0]:
            raise Misfit(f"it writes a result that was {known.layout} in {made.label} into {layout}")
        if known.layout[2] != layout[2] and not call.pointwise:
            raise Misfit(f"it writes a result of {known.layout[2]} into {layout[2]}: it may compute in that dtype, too")
        if known.layout[1] != layout[1] and not self._is_exact(call, known.layout[2]):
            raise Misfit(
                f"it writes a result that was {known.layout} in {made.label} into {layout}: it may round differently, "
                "or draw in another order, where the result is laid out differently"
            )
        contents = Contents.run(layout[0], known.layout[2].itemsize, known.start)
        self._fill(place, self.moves.convert(contents, known.layout[2], layout[2]))

    def _is_exact(self, call: OperatorCall, dtype: torch.dtype) -> bool:
        """Whether a result has the same bits in any layout.

        Kernels process contiguous elements in vectors, others one by one, which may round differently. An elementwise
        operator in place visits its operand in the same order as out of place, whatever the operand's layout.
        """
        whole_numbers = not (dtype.is_floating_point or dtype.is_complex)
        return call.pointwise and not call.draws and (whole_numbers or not call.outs)

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _fresh(self, value: Value, contents: Contents) -> NumberedTensor:
        return self._filled(self.described(value.tensor), contents)

    def _filled(self, tensor: torch.Tensor, contents: Contents) -> NumberedTensor:
        """New memory for a tensor like this one, with these contents."""
        place = on_new_memory(tensor)
        self._fill(place, contents)
        return place

    def _fill(self, place: NumberedTensor, contents: Contents) -> None:
        if contents.shape != place.region.shape or contents.itemsize != place.region.itemsize:
            raise Misfit(f"{list(contents.shape)} is put into {list(place.region.shape)}, {place.tensor.dtype}")
        self.moves.write(place, contents)


def _part(view: Overload, index: int | None, args: Sequence[Any], kwargs: Mapping[str, Any], base: torch.Tensor) -> Any:
    made: Any = view(base, *args, **kwargs)
    return made if index is None else made[index]


def _first_meta(node: Node) -> TensorMeta:
    for value in node.results():
        return value.tensor
    raise Misfit("it has no result")


def _operands(call: OperatorCall) -> list[Operand]:
    return [operand for _, operand in call.arguments]


def _returned(node: Node, call: OperatorCall) -> tuple[list[tuple[int, Value | None]], list[tuple[int, str]]]:
    """Which outputs are fresh results, and which are written arguments handed back, with their alias sets."""
    returns = schema_of(call.op).returns if call.op is not None and call.writes else ()
    outputs = list(enumerate(node.outputs))
    if not returns:
        return ([] if call.writes else outputs), []
    if len(returns) == 1 and returns[0][0].startswith("List"):
        return ([] if returns[0][2] else outputs), []
    fresh = [(i, node.outputs[i] if i < len(outputs) else None) for i, (_, _, write) in enumerate(returns) if not write]
    return fresh, [(i, alias) for i, (_, alias, is_write) in enumerate(returns) if is_write]


def label_of(node: Node) -> str:
    """A node in a message."""
    name = next((value.name for value in node.results()), "")
    target = str(node.target) if isinstance(node.target, Overload) else getattr(node.target, "name", str(node.target))
    return f"{name} = {target}" if name else target
