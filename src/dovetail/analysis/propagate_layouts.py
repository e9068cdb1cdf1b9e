"""The effects of changed layouts: shapes, strides and storages, found by running nodes again.

A pass can change the layout of a value: channels-last for a convolution, say. Then most nodes that
read it give results of another layout, too, and `LayoutPropagation` runs these nodes on fake tensors once more. No
caller may see a difference, so some values keep their layout, by a copy:

- values in the storage of an output, because its strides and the memory it shares are the caller's;
- what an operator reads by place (`as_strided`), or whose order in memory decides the result (random numbers);
- operands of an operator that cannot run on the new layout, or of which it is not known what it gives then
  (`ops.layouts`).

    a = convolution(x, w)                          a = convolution(x, w_last)              # channels last now
    b = relu(a)                              ->    b_1 = relu(a_1)                         # so is this
    c = as_strided(b, [4, 4], [4, 1])              b = copy_to_layout(b_1, ...)            # b as it was
    return c                                       c = as_strided(b, [4, 4], [4, 1])

A view that the new layout has no strides for is taken of a contiguous copy.

Cost: a run on fake tensors for each affected node (about a tenth of a millisecond); nothing for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value, symbols_in, values_in
from dovetail.ops.layouts import is_absolute, is_reshaping_view, may_follow_layout
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.ops.views import viewed_meta
from dovetail.torch_compat.symbols import no_new_facts

aten = torch.ops.aten


def propagate_layouts(program: Program, changed: Mapping[Value, Value], infer: MetaInference) -> Program:
    """The program in which a changed value stands for an old one, from where it is made.

    changed: the new value for an old one, equal in everything but layout. A new value is an input, or the result of a
    node of the program; nodes after that read it, nodes before (which may make it) read the old value. A node whose
    results look as before keeps them; inputs and outputs stay as they are, in value, layout and shared memory.
    """
    state = LayoutPropagation(program, infer)
    stands_for = {new: old for old, new in changed.items()}
    for value in program.inputs:
        if value in stands_for:
            state.change(stands_for[value], value)
    for node in program.nodes:
        state.follow(node)
        for value in node.results():
            if value in stands_for:
                state.change(stands_for[value], state.current(value))
    return state.finish()


class LayoutPropagation:
    """Rewrites a program node by node, in order; see the module's text.

    maker: makes new nodes, which `add` and `stand_in` put into the program.
    """

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self._draft = Draft(program)
        self.maker = NodeMaker(self._draft, infer)
        self._copies: list[Value] = []
        self._program = program
        self._infer = infer
        self._copied: dict[Value, Value] = {}
        self._there = set(program.inputs)
        self._storages = set(program.input_storages())
        self._pinned = _pinned_storages(program)
        self._sized_by_data = made_symbols(program)

    # --- what a pass calls --------------------------------------------------------------------------------------

    def current(self, value: Value) -> Value:
        """What stands for a value of the old program by now."""
        return self._draft.current(value)

    def follow(self, node: Node) -> None:
        """Take over a node of the old program, described again where its operands have changed."""
        if all(self.current(value) is value for value in node.operands()):
            self._keep(node)
        elif node.target is COPY_TO_LAYOUT:
            self._keep(node.with_operands(self.current))
        elif not self._follows_layout(node):
            self.keep(node)
        else:
            again = self.described(node.with_operands(self.current))
            if again is None or not self._can_be_restored(again, node):
                self.keep(node)
            else:
                self.stand_in(again, node.outputs)

    def keep(self, node: Node) -> None:
        """Take over a node of the old program whose operands are to lie as before."""
        self._keep(node.with_operands(self.as_before))

    def add(self, node: Node) -> Value:
        """Append a new node of one result, which stands for nothing; its result."""
        self._draft.nodes.append(node)
        (result,) = node.results()
        return result

    def stand_in(self, node: Node, olds: Sequence[Value | None]) -> None:
        """Append a new node whose results stand for values of the old program from now on.

        If they look as those did, they are the old values.
        """
        if self._looks_as_before(node, olds):
            self._keep(replace(node, outputs=tuple(olds)))
            return
        self._draft.nodes.append(node)
        self._storages.update(old.tensor.storage for old in olds if old is not None and old.is_tensor)
        for old, new in zip(olds, node.outputs, strict=True):
            if old is not None and new is not None:
                self.change(old, new)

    def change(self, old: Value, new: Value) -> None:
        """From now on, `new` stands for `old`, which has a different layout."""
        self._draft.substitute(old, new)
        if old.is_tensor and old.tensor.storage in self._pinned and old not in self._there:
            assert old.tensor.offset == 0, "the base of a pinned storage starts where that does"
            self._draft.nodes.append(_copy(new, old))
            self._there.add(old)
            self._copies.append(old)

    def as_before(self, value: Value) -> Value:
        """The value in its old layout: itself, or a copy that is made where it is first asked for."""
        if self.current(value) is value or value in self._there:
            return value
        if value not in self._copied:
            copied = self._draft.value(value.name, value.tensor)
            self._draft.nodes.append(_copy(self.current(value), copied))
            self._copied[value] = copied
            self._copies.append(copied)
        return self._copied[value]

    def described(self, node: Node) -> Node | None:
        """A node with its results described again; None if it cannot run on its operands.

        A view that has no strides there becomes a view of a contiguous copy, which is added.
        """
        shows_otherwise = is_reshaping_view(node) or node.target is aten.reshape.default
        again = None if shows_otherwise and not _has_strides(node) else self._reinferred(node)
        if again is None and shows_otherwise:
            base = node.args[0]
            assert isinstance(base, Value), "views have a base"
            copy = Node(aten.clone.default, (base,), (("memory_format", torch.contiguous_format),), origin=node.origin)
            copied = self._reinferred(replace(copy, outputs=(base,), phase=node.phase))
            if copied is not None:
                (contiguous,) = copied.results()
                again = self._reinferred(replace(node, args=(contiguous, *node.args[1:])))
                if again is not None:
                    self._copies.append(self.add(copied))
        return again

    def finish(self) -> Program:
        """The new program."""
        outputs = [value for value in values_in(self._program.outputs) if value not in self._there]
        assert not outputs, f"outputs stay as they were, unlike {outputs}"
        return self._program.replace_nodes(tuple(self._draft.nodes))

    def copies_in(self, program: Program) -> tuple[str, ...]:
        """Names of the values of a program that are there only because something has to lie as before."""
        made = program.producers()
        return tuple(value.name for value in self._copies if value in made)

    # --- how ----------------------------------------------------------------------------------------------------

    def _keep(self, node: Node) -> None:
        self._draft.nodes.append(node)
        self._there.update(node.results())
        self._storages.update(value.tensor.storage for value in node.results() if value.is_tensor)

    def _reinferred(self, node: Node) -> Node | None:
        try:
            with no_new_facts(self._infer.mode.shape_env):
                return self.maker.reinferred(node)
        except Exception:  # whatever the operator says of operands that lie otherwise; then they stay as they were
            return None

    def _follows_layout(self, node: Node) -> bool:
        """Whether nobody minds that the node runs on operands that have a different layout."""
        return may_follow_layout(node) and node not in self._sized_by_data and not self._is_pinned_view(node)

    def _is_pinned_view(self, node: Node) -> bool:
        held = {value.tensor.storage for value in node.operands() if value.is_tensor}
        made = {value.tensor.storage for value in node.results() if value.is_tensor}
        return bool(made & held & self._pinned)

    def _can_be_restored(self, again: Node, node: Node) -> bool:
        """Whether a copy gives back each result that has to stay."""
        pairs = [(o, n) for o, n in zip(node.outputs, again.outputs, strict=True) if o is not None and n is not None]
        if len(pairs) != len(node.results()) or any(o.is_tensor is not n.is_tensor for o, n in pairs):
            return False
        pinned = [o for o, _ in pairs if o.is_tensor and o.tensor.storage in self._pinned]
        apart = len({o.tensor.storage for o in pinned}) == len(pinned)
        return (
            not pinned
            or self._looks_as_before(again, node.outputs)
            or (apart and all(o.tensor.offset == 0 for o in pinned))
        )

    def _looks_as_before(self, node: Node, olds: Sequence[Value | None]) -> bool:
        """Whether the results look as the old ones did, each on a storage of its own, then as now."""
        held = {value.tensor.storage for value in node.operands() if value.is_tensor}
        seen: set[int] = set()
        for old, new in zip(olds, node.outputs, strict=True):
            if old is None or new is None or not old.is_tensor or not new.is_tensor:
                return False
            was, is_now = old.tensor, new.tensor
            if was.layout() != is_now.layout() or was.offset != is_now.offset:
                return False
            if was.storage in self._storages or was.storage in seen or is_now.storage in held:
                return False
            seen.add(was.storage)
        return True


def _has_strides(node: Node) -> bool:
    """Whether there are strides for a view in the layout of its base.

    Fakes take an image of which a size is 1 to be contiguous when it is not, and find some wherever it lies.
    """
    base = node.args[0]
    assert isinstance(base, Value), "views have a base"
    numbers = (*base.tensor.shape, *base.tensor.stride, base.tensor.offset)
    if any(symbols_in((numbers, node.args[1:]))) or any(values_in(node.args[1:])):
        return 1 not in base.tensor.shape
    return viewed_meta(aten.view.default, None, node.args[1:], base.tensor, None) is not None


def _pinned_storages(program: Program) -> frozenset[int]:
    """Storages whose values stay as they were: those of outputs, and those that are read by place or shared oddly."""
    pinned = set(program.output_storages())
    for node in program.nodes:
        if may_follow_layout(node):
            continue
        made = {value.tensor.storage for value in node.results() if value.is_tensor}
        for value in node.operands():
            if value.is_tensor and (is_absolute(node) or value.tensor.storage in made):
                pinned.add(value.tensor.storage)
    return frozenset(pinned)


def _copy(source: Value, like: Value) -> Node:
    """The node that copies a value into the layout of `like`, which it gives."""
    wanted = like.tensor
    args = (source, list(wanted.shape), list(wanted.stride), wanted.dtype, wanted.device)
    return Node(COPY_TO_LAYOUT, args, outputs=(like,))
