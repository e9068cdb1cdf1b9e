"""Apply a choice: copies of forward nodes in backward, late, and a forward that keeps less.

    forward(x, w) -> loss, mm, sin           forward(x, w) -> loss, mm
    backward(mm, sin, g):                    backward(mm, g):
      a = mul(g, sin)                 ->       sin_again = sin(mm)
                                               a = mul(g, sin_again)

A value is computed again right before the first node that reads it, once, and stays until its last reader. Forward
drops nodes that are no longer read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program, TensorMeta, Value, values_in
from dovetail.ops.facts import may_be_removed
from dovetail.partition.policy import can_run_again
from dovetail.partition.problem import written_storages
from dovetail.partition.split import Split, is_forward, residuals_of, split_nodes


def split_keeping(program: Program, keeps: Callable[[Value], bool]) -> Split:
    """The split in which backward computes again whatever forward does not keep, and can be.

    keeps: whether forward saves a value where backward needs it.
    """
    forward = [node for node in program.nodes if node.phase is Phase.FORWARD]
    writer = _Writer(program, keeps)
    for node in program.nodes:
        if node.phase is Phase.BACKWARD:
            writer.add(node)
    backward = tuple(writer.nodes)
    saved, _ = residuals_of(program, backward)
    roles = zip(program.signature.outputs, program.outputs, strict=True)
    returned = [operand for role, operand in roles if is_forward(role)]
    if writer.recomputed:
        forward = _still_read(program, forward, {*values_in(returned), *saved})
    split = split_nodes(program, tuple(forward), backward)
    names = {value.name for value in writer.sources}
    return replace(split, sources=tuple(name for name in split.residuals if name in names))


def keeps_named(program: Program, names: Collection[str]) -> Callable[[Value], bool]:
    """For a program whose forward saves values of these names: whether a value is one of them, or must be.

    A value of another name must be where nothing that is saved leads to it.
    """
    fixed = frozenset(made_symbols(program))
    written = written_storages(program)
    saved = {value for value in program.inputs if value.is_tensor and value.name in names}
    reachable = {value for value in saved if value.tensor.storage not in written}
    for node in program.nodes:
        if node.phase is Phase.FORWARD:
            named = {value for value in node.results() if value.name in names}
            saved |= named
            reachable.update(v for v in named if not (v.is_tensor and v.tensor.storage in written))
            if can_run_again(node, fixed) and reachable.issuperset(node.operands()):
                reachable.update(node.results())
    return lambda value: value in saved or value not in reachable


def _still_read(program: Program, nodes: list[Node], needed: set[Value]) -> list[Node]:
    """The nodes without those whose results nobody reads, in order. Numbers and sizes may be read without a trace."""
    fixed = made_symbols(program)
    left: list[Node] = []
    for node in reversed(nodes):
        numbers = node in fixed or any(not value.is_tensor for value in node.results())
        if numbers or not may_be_removed(node) or not needed.isdisjoint(node.results()):
            left.append(node)
            needed.update(node.operands())
    left.reverse()
    return left


class _Writer:
    """Backward with copies of forward nodes.

    recomputed: forward nodes that were copied. sources: what the copies read, values that are computed again included.
    """

    def __init__(self, program: Program, keeps: Callable[[Value], bool]) -> None:
        self._draft = Draft(program)
        self.nodes = self._draft.nodes
        self.recomputed: set[Node] = set()
        self.sources: set[Value] = set()
        self._keeps = keeps
        self._makers = {v: n for n in program.nodes if n.phase is Phase.FORWARD for v in n.results() if v.is_tensor}
        roles = zip(program.signature.outputs, program.outputs, strict=True)
        returned = [operand for role, operand in roles if not is_forward(role)]
        for value in values_in(returned):
            self._draft.substitute(value, value)

    def add(self, node: Node) -> None:
        """Append a node of backward, after what it needs."""
        for value in node.operands():
            self._make(value)
        self._place_views(node)
        self._draft.take(node)

    def _place_views(self, node: Node) -> None:
        """Describe the results of a node that views memory which was made again where they lie there."""
        places: dict[int, int] = {}
        for value in node.operands():
            new = self._draft.current(value)
            if value.is_tensor and new.tensor.storage != value.tensor.storage:
                places[value.tensor.storage] = new.tensor.storage
        for value in node.results():
            if value.is_tensor and value.tensor.storage in places:
                meta = replace(value.tensor, storage=places[value.tensor.storage])
                self._draft.substitute(value, Value(value.name, meta))

    def _make(self, value: Value) -> None:
        stack = [value]
        while stack:
            top = stack[-1]
            maker = self._makers.get(top)
            if maker is None or top in self._draft:
                stack.pop()
            elif self._keeps(top):
                self._draft.substitute(top, top)
            elif missing := [v for v in maker.operands() if v in self._makers and v not in self._draft]:
                stack += reversed(missing)
            else:
                self._copy(maker)

    def _copy(self, maker: Node) -> None:
        recomputed = maker.with_operands(self._draft.current)
        self.sources.update(recomputed.operands())
        places = {v.tensor.storage: self._draft.current(v).tensor.storage for v in maker.operands()}
        outputs = tuple(None if value is None else self._recomputed(value, places) for value in maker.outputs)
        for old, new in zip(maker.outputs, outputs, strict=True):
            if old is not None and new is not None and old not in self._draft:
                self._draft.substitute(old, new)
        self.nodes.append(replace(recomputed, outputs=outputs, phase=Phase.BACKWARD, recomputed=True))
        self.recomputed.add(maker)

    def _recomputed(self, value: Value, places: dict[int, int]) -> Value:
        """A new value like this one. places: by storage in forward, the storage in backward."""
        meta = value.tensor
        if meta.storage not in places:
            places[meta.storage] = self._draft.storage()
        placed: TensorMeta = replace(meta, storage=places[meta.storage])
        return Value(self._draft.name(f"{value.name}_again"), placed)
