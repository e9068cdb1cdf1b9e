"""Merge linear layers that read the same tensor into one, with the weights one after the other.

    q = addmm(bq, x, wq.t())                                  r = addmm(cat(bq, bk, bv), x, cat(wq, wk, wv).t())
    k = addmm(bk, x, wk.t())    ->    q, k, v = slices of r
    v = addmm(bv, x, wv.t())

The weights must be constants, the input the same part of the same memory, and either all layers have a bias or none
has. The results are views with gaps of one tensor, so all readers get new descriptions until a result
has its old layout. Layers stay where that is not possible: a result that is returned or written, a view that needs its
operand without gaps, an operator from elsewhere. The new weight and bias are named in `MergeLinearsReport.asked`.

Is it faster? Not on CPUs: three layers of 384 -> 384 features as one, on one thread of an x86 with MKL, took 0.96 to
1.00 times as long for 16 rows and 0.94 to 0.99 for 128; with the attention that reads the slices, 0.99 to 1.04 and 0.94
to 0.99. With 768 features it was slower (1.03 to 1.10), because memory with gaps is slower to read. So the pass runs
only by name: it is meant for devices on which starting an operator is expensive.

Source: the "packed projections" of Vaswani et al., "Attention Is All You Need" (2017), in most implementations.
Cost: O(nodes) a group, and one run on fakes for each node that reads a slice. Peak memory can rise: the slices live as
long as the last of them. Results differ from eager's by rounding: a product of another size sums in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, Target, Value, values_in
from dovetail.ops.arguments import with_arguments
from dovetail.ops.facts import is_reinterpretation, may_be_removed, written_values
from dovetail.passes.linear_forms import Affine, affine_of
from dovetail.passes.new_layouts import Blocked, follow

aten = torch.ops.aten

MERGED = "MERGED"


@dataclass(frozen=True, slots=True)
class MergeRow:
    """Layers that read the same tensor, by their results. code: `MERGED`, or why they stay. origin: of the first."""

    layers: tuple[str, ...]
    code: str
    because: str
    origin: str = ""

    @property
    def is_merged(self) -> bool:
        """Whether the layers are one."""
        return self.code == MERGED

    def __str__(self) -> str:
        text = f"{', '.join(self.layers)}: {self.code}: {self.because}"
        return text + (f"   {self.origin}" if self.origin else "")


@dataclass(frozen=True, slots=True)
class MergeLinearsReport:
    """A row for each group of layers. asked: names of the values that must become constants."""

    rows: tuple[MergeRow, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def merged(self) -> tuple[MergeRow, ...]:
        """The rows of layers that are one now."""
        return tuple(row for row in self.rows if row.is_merged)

    def __str__(self) -> str:
        count = sum(len(row.layers) for row in self.merged)
        return "\n  ".join([f"merged {count} linear layers into {len(self.merged)}", *map(str, self.rows)])


def merge_linears(
    program: Program, constants: Collection[str], infer: MetaInference
) -> tuple[Program, MergeLinearsReport]:
    """The program with linear layers that read the same tensor merged where nobody can tell, but for rounding.

    Args:
        program: of any stage. Where operators write, layers merge only if nothing writes what they read between them.
        constants: names of inputs that are the same in every call.
        infer: makes fakes of the program's descriptions.

    Returns: the program (itself when nothing is merged) and the report. What the program returns lies as it did.
    """
    merging = _Merging(program, constants, infer)
    groups = merging.groups()
    for group in groups:
        merging.merge(group)
    return merging.program, MergeLinearsReport(tuple(merging.rows), tuple(merging.asked))


@dataclass(frozen=True, slots=True)
class _Weights:
    """The nodes that make the weight and the bias of a group, and those."""

    nodes: tuple[Node, ...]
    weight: Value
    bias: Value | None
    asked: tuple[str, ...]


class _Merging:
    """The program so far, and what is said of it."""

    def __init__(self, program: Program, constants: Collection[str], infer: MetaInference) -> None:
        self.program = program
        self.rows: list[MergeRow] = []
        self.asked: list[str] = []
        self._constants = constant_values(program, constants)
        self._infer = infer
        self._make = NodeMaker(Draft(program), infer)

    # --- which ones? --------------------------------------------------------------------------------------------

    def groups(self) -> list[list[Affine]]:
        """The layers that can be merged as far as they themselves go; says why others cannot."""
        reread = {value.tensor.storage for node in self.program.nodes for value in _reinterpreted(node)}
        writes: dict[int, int] = {}
        found: dict[object, list[Affine]] = {}
        for node in self.program.nodes:
            layer = affine_of(node)
            if layer is not None and not layer.is_convolution:
                meta = self._infer.settled(layer.input.tensor)
                is_plain = meta.storage not in reread
                found.setdefault((meta if is_plain else layer.input, writes.get(meta.storage)), []).append(layer)
            for value in written_values(node):
                if value.is_tensor:
                    writes[value.tensor.storage] = writes.get(value.tensor.storage, 0) + 1
        groups: list[list[Affine]] = []
        for layers in found.values():
            if len(layers) > 1:
                groups += self._alike(layers)
        return groups

    def _alike(self, layers: list[Affine]) -> list[list[Affine]]:
        """The layers of one input, by kind."""
        kinds: dict[object, list[Affine]] = {}
        for layer in layers:
            parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
            if not self._constants.issuperset(parameters):
                self._refuse([layer], "WEIGHT-NOT-CONSTANT", "its weight or bias is not a constant")
                continue
            dtypes = tuple(value.tensor.dtype for value in (layer.result, *parameters))
            kinds.setdefault((layer.node.target, layer.node.phase, layer.node.recomputed, dtypes), []).append(layer)
        for kind in kinds.values():
            if len(kind) == 1 and len(kinds) > 1:
                self._refuse(
                    kind, "UNLIKE", "the other readers of its input have another dtype, or only one of them has a bias"
                )
        return [kind for kind in kinds.values() if len(kind) > 1]

    def _refuse(self, layers: Sequence[Affine], code: str, because: str) -> None:
        origin = str(layers[0].node.origin)
        self.rows.append(MergeRow(tuple(layer.result.name for layer in layers), code, because, origin))

    # --- merging ------------------------------------------------------------------------------------------------

    def merge(self, group: list[Affine]) -> None:
        """Merge the layers of a group, without those whose readers cannot follow."""
        group = self._as_they_are(group)
        if len({self._infer.settled(layer.input.tensor) for layer in group}) > 1:
            return self._refuse(group, "UNLIKE", "their inputs are no longer the same")
        while len(group) > 1:
            blocked = self._try(group)
            if blocked is None:
                return
            left_out = [layer for layer in group if layer.result in blocked.sources]
            self._refuse(left_out, blocked.code, blocked.because)
            group = [layer for layer in group if layer.result not in blocked.sources]
        if group:
            self._refuse(group, "ALONE", "no other layer is left to merge it with")

    def _as_they_are(self, group: list[Affine]) -> list[Affine]:
        """The layers in the program as it is by now."""
        wanted = {layer.result.name for layer in group}
        nodes = [node for node in self.program.nodes if any(value.name in wanted for value in node.results())]
        return [layer for layer in map(affine_of, nodes) if layer is not None]

    def _try(self, group: list[Affine]) -> Blocked | None:
        weights = self._weights(group)
        merged = self._call(group[0], weights)
        whole = merged.results()[0]
        slices: list[Node] = []
        start = 0
        for layer in group:
            end = start + _known(layer.channels)
            args: tuple[Operand, ...] = (whole, layer.channel, start, end)
            name, origin = layer.result.name, layer.node.origin
            slices.append(self._make.call(aten.slice.Tensor, args, name=name, origin=origin, phase=layer.node.phase))
            start = end
        parts = {layer.result: part.results()[0] for layer, part in zip(group, slices, strict=True)}
        followed = follow(self.program, parts, self._make)
        if isinstance(followed, Blocked):
            return followed
        self.program = self._with(group, [*weights.nodes, merged, *slices], followed.nodes)
        self.asked += weights.asked
        because = f"they are slices of {whole.name}"
        self.rows.append(MergeRow(tuple(p.name for p in parts), MERGED, because, str(group[0].node.origin)))
        return None

    def _weights(self, group: list[Affine]) -> _Weights:
        """The weights of the layers one after the other, and their biases."""
        first = group[0]
        matrices = [layer.weight for layer in group]
        dim = first.weight_channel
        makers = self.program.producers()
        rows = [_transposed(makers.get(matrix)) for matrix in matrices]
        known = [row for row in rows if row is not None and row in self._constants]
        is_turned = first.weight_channel == 1 and len(known) == len(group)
        if is_turned:  # laid out as the weights are
            matrices, dim = known, 0
        whole = self._node(first, aten.cat.default, "weight", matrices, dim)
        nodes = [whole]
        if is_turned:
            nodes.append(self._node(first, aten.t.default, "matrix", whole.results()[0]))
        weight, asked = nodes[-1].results()[0], [whole.results()[0].name]
        biases = [layer.bias for layer in group if layer.bias is not None]
        bias: Value | None = None
        if biases:
            nodes.append(self._node(first, aten.cat.default, "bias", biases))
            bias = nodes[-1].results()[0]
            asked.append(bias.name)
        return _Weights(tuple(nodes), weight, bias, tuple(asked))

    def _node(self, first: Affine, target: Target, what: str, *args: Operand) -> Node:
        name = f"{first.result.name}_{what}"
        return self._make.call(target, args, name=name, origin=first.node.origin, phase=first.node.phase)

    def _call(self, first: Affine, weights: _Weights) -> Node:
        """The first layer with the weights of all."""
        is_linear = first.node.target is aten.linear.default
        changes: dict[str, Operand] = {"weight" if is_linear else "mat2": weights.weight}
        if weights.bias is not None:
            changes["bias" if is_linear else "self"] = weights.bias
        node = with_arguments(first.node, changes)
        name = f"{first.result.name}_merged"
        made = self._make.call(node.target, node.args, node.kwargs, name=name, origin=node.origin, phase=node.phase)
        return replace(made, recomputed=node.recomputed)

    def _with(self, group: list[Affine], new: list[Node], moved: Mapping[Node, Node]) -> Program:
        """The program with the new nodes where the first layer was, and without the layers."""
        gone = {layer.node for layer in group}
        early = self._makers_of(value for node in new for value in node.operands())
        nodes: list[Node] = []
        placed: set[Node] = set()
        for node in self.program.nodes:
            if node is group[0].node:
                nodes += [maker for maker in early if maker not in placed]
                nodes += new
                placed.update(early)
            if node not in gone and node not in placed:
                nodes.append(moved.get(node, node))
                placed.add(node)
        read = {value for node in nodes for value in node.operands()} | set(values_in(self.program.outputs))
        turned = {layer.weight for layer in group}
        left = (n for n in nodes if not (turned.issuperset(n.results()) and read.isdisjoint(n.results())) or _stays(n))
        return self.program.replace_nodes(tuple(left))

    def _makers_of(self, values: Iterable[Value]) -> list[Node]:
        """The nodes that compute what is constant among the values, in program order."""
        makers = self.program.producers()
        found: set[Node] = set()
        pending = [value for value in values if value in self._constants]
        while pending:
            maker = makers.get(pending.pop())
            if maker is not None and maker not in found:
                found.add(maker)
                pending += maker.operands()
        return [node for node in self.program.nodes if node in found]


def _stays(node: Node) -> bool:
    return not node.results() or not may_be_removed(node)


def _reinterpreted(node: Node) -> list[Value]:
    return [value for value in node.results() if value.is_tensor] if is_reinterpretation(node.target) else []


def _transposed(node: Node | None) -> Value | None:
    """The matrix whose transpose the node gives."""
    if node is None:
        return None
    order: object = (1, 0) if node.target is aten.t.default else ()
    if node.target is aten.transpose.int or node.target is aten.permute.default:
        order = node.args[1] if node.target is aten.permute.default else node.args[1:3]
    turns = [dim % 2 for dim in order if isinstance(dim, int)] if isinstance(order, tuple | list) else []
    is_turn = turns == [1, 0] or (node.target is aten.transpose.int and turns == [0, 1])
    source = node.args[0] if is_turn else None
    return source if isinstance(source, Value) and len(source.tensor.shape) == 2 else None


def _known(size: object) -> int:
    assert isinstance(size, int), "constants have known sizes"
    return size
