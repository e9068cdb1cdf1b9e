"""Fold batch norms that do not train into the convolution or linear layer before them.

A batch norm with fixed statistics multiplies each channel by a number and adds one, and what is before it can do both:

    c = convolution(x, w, b, ...)                       c = convolution(x, w2, b2, ...)
    y = batch_norm(c, gamma, beta, mean, var, eps)  ->    with  s  = gamma / sqrt(var + eps)
                                                                w2 = w * s,  b2 = (b - mean) * s + beta

Each pair is folded by itself: a layer that is called twice gets a weight for each norm that follows a call, and a norm
that follows two layers goes into both. Between a linear layer and its norm may stand views that move the features to
dimension 1. The new weight and bias are nodes: they compute in float64 from the constants and round once, to the dtype
of the layer. They are named in `FoldBatchNormsReport.asked`, because the program is faster only once they are computed
ahead of time. Nodes that are no longer read, other than the layer and the norm, are left to `remove_dead_code`.

Error bound: each element is within gamma(n + 2) * (sum |w2 * x| + |b2|) of the exact one, in whatever
order a kernel adds; n is the number of terms in the sum, gamma(n) = n * u / (1 - n * u), u the unit roundoff. A kernel
that starts its sum from the bias may lose n * u * |b2|, where eager adds the shift once. Where that matters by the
statistics of the norm (`passes.folded_weights`), the shift stays out of the sum, and n * u * |b2| becomes 3 * u * |b2|:

    y = batch_norm(convolution(x, w, b, ...), ...)    ->    y = add(convolution(x, w2, None, ...), b2)

A norm *before* a convolution is left: the zeros of the padding are not normalized. Layers in float16 are left unless
asked for, because a scaled weight can exceed the range of float16 although no result in eager does.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"
(2018), section 3.2, for the algebra. Cost: O(nodes + operands), and one run on fakes of what is added. A layer whose
weight has other readers needs memory for another weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, Target, Value, values_in
from dovetail.ops.facts import written_values
from dovetail.passes.folded_weights import Folded, FoldedWeights
from dovetail.passes.linear_forms import Affine, affine_of
from dovetail.passes.norm_forms import BatchNorm, batch_norm_of, lies_as_norms_do

aten = torch.ops.aten

FOLDED = "FOLDED"

_IN_BIAS = "its scale and shift are in the weight and bias of {layer}"
_ADDED = (
    "its scale is in the weight of {layer}; its shift is added afterwards, because it is large for a term of the sum"
)

_REASONS = {
    "TRAINING": "it normalizes with the statistics of the batch",
    "NO-LAYER-BEFORE": "its input is not the result of a convolution or linear layer, or a view of one",
    "CHANNEL-MISMATCH": "it does not normalize the output channels of {layer}",
    "SYMBOLIC-CHANNELS": "{layer} has a number of output channels that is not known yet",
    "CONV-READ-TWICE": "{value} has other readers, too",
    "CONV-RETURNED": "{value} is a result of the program",
    "WEIGHT-NOT-CONSTANT": "the weight of {layer} is not a constant",
    "BIAS-NOT-CONSTANT": "the bias of {layer} is not a constant",
    "STATS-NOT-CONSTANT": "its statistics or parameters are not constants, or are written",
    "STATISTICS-READ": "its other results are read",
    "DTYPE-MISMATCH": "{layer} has another dtype, or one that is not floating-point",
    "HALF-RANGE": "the weight of {layer} is float16, whose range the scaled weight could exceed",
    "NO-FLOAT64": "its device has no float64",
    "INPUT-WRITTEN": "an operand or the result of {layer} is written before the norm",
    "OTHER-PHASE": "{layer} runs in another pass",
    "LAYOUT": "{layer} would give another layout than the norm",
}


@dataclass(frozen=True, slots=True)
class NormRow:
    """One batch norm. layer: the result of the layer before it, or "". code: `FOLDED`, or why it stays."""

    norm: str
    layer: str
    code: str
    because: str
    origin: str = ""

    @property
    def is_folded(self) -> bool:
        """Whether the norm is gone."""
        return self.code == FOLDED

    def __str__(self) -> str:
        return f"{self.norm}: {self.code}: {self.because}" + (f"   {self.origin}" if self.origin else "")


@dataclass(frozen=True, slots=True)
class FoldBatchNormsReport:
    """A row for each batch norm, in program order. asked: names of the values that must become constants."""

    rows: tuple[NormRow, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def folded(self) -> tuple[NormRow, ...]:
        """The rows of norms that are gone."""
        return tuple(row for row in self.rows if row.is_folded)

    def __str__(self) -> str:
        lines = [f"folded {len(self.folded)} of {len(self.rows)} batch norms", *map(str, self.rows)]
        return "\n  ".join(lines)


def fold_batch_norms(
    program: Program,
    constants: Collection[str],
    infer: MetaInference,
    *,
    half: bool = False,
    frugal: bool = False,
    contents: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Program, FoldBatchNormsReport]:
    """The program with each batch norm that can be folded in the weight of the layer before it.

    Args:
        program: of any stage; where operators write, nothing is folded across a write.
        constants: names of inputs that are the same in every call.
        infer: makes fakes of the program's descriptions.
        half: whether layers in float16 are folded; nothing may then overflow, which nobody checks.
        frugal: compute new weights some rows at a time, by a primitive of dovetail's: none is copied in float64.
        contents: tensors of inputs, by name, by which a large shift is known. Unknown ones are taken to be small. The
            program is right whatever they are later.

    Returns: the program (itself when nothing is folded) and the report. Layouts of results are as they were.
    """
    draft = Draft(program)
    make = NodeMaker(draft, infer)
    weights = FoldedWeights(program, constant_values(program, constants), make, contents or {}, frugal=frugal)
    folding = _Folding(program, draft, weights, half)
    for node in program.nodes:
        folding.take(node)
    draft.nodes += [node for group in folding.kept for node in group]
    asked = dict.fromkeys(name for names in folding.asked.values() for name in names)
    return draft.finish(), FoldBatchNormsReport(tuple(folding.rows), tuple(asked))


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a norm stays. layer, value: what the reason is about, where there is one."""

    code: str
    layer: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A norm, the layer before it, and the views between them, first to last."""

    norm: BatchNorm
    layer: Affine
    views: tuple[Node, ...]


class _Folding:
    """The program so far.

    kept: for each node taken, what is left of it. asked: by the result of a layer, its new weight and bias.
    """

    def __init__(self, program: Program, draft: Draft, weights: FoldedWeights, half: bool) -> None:
        self.kept: list[list[Node]] = []
        self.rows: list[NormRow] = []
        self.asked: dict[str, tuple[str, str]] = {}
        self._half = half
        self._reads = {value.name: count for value, count in program.use_counts().items()}
        self._returned = {value.name for value in values_in(program.outputs)}
        self._draft = draft
        self._weights = weights
        self._makers: dict[Value, Node] = {}
        self._places: dict[Node, int] = {}
        self._written_at: dict[int, int] = {}

    def take(self, original: Node) -> None:
        """Go one node further."""
        node = self._draft.rewritten(original)
        place = len(self.kept)
        norm = batch_norm_of(node)
        self.kept.append([])
        self._place([node], place)
        self._written_at.update((v.tensor.storage, place) for v in written_values(node) if v.is_tensor)
        self._weights.follow(original, node)
        if norm is None:
            return
        pair = self._pair(norm)
        done = pair if isinstance(pair, _Refusal) else self._fold(pair, place)
        layer = pair.layer.result.name if isinstance(pair, _Pair) else pair.layer
        code = done.code if isinstance(done, _Refusal) else FOLDED
        if isinstance(done, _Refusal):
            because = _REASONS[code].format(layer=layer or "the layer", value=done.value)
        else:
            because = _ADDED.format(layer=layer) if done.is_added else _IN_BIAS.format(layer=layer)
        self.rows.append(NormRow(norm.result.name, layer, code, because, str(original.origin)))

    def _place(self, nodes: list[Node], place: int) -> None:
        self.kept[place] = nodes
        self._places.update(dict.fromkeys(nodes, place))
        self._makers.update((result, node) for node in nodes for result in node.results())

    # --- may it be folded? --------------------------------------------------------------------------------------

    def _pair(self, norm: BatchNorm) -> _Pair | _Refusal:
        if norm.trains:
            return _Refusal("TRAINING")
        found = self._layer_before(norm)
        if isinstance(found, _Refusal):
            return found
        layer, name = found.layer, found.layer.result.name
        if any(value.name in self._reads for value in norm.node.results()[1:]):
            return _Refusal("STATISTICS-READ", name)
        code = self._objection(norm, layer)
        if code:
            return _Refusal(code, name)
        touched, place = (layer.input, layer.result), self._places[layer.node]
        if any(self._written_at.get(value.tensor.storage, -1) >= place for value in touched):
            return _Refusal("INPUT-WRITTEN", name)
        return found

    def _layer_before(self, norm: BatchNorm) -> _Pair | _Refusal:
        """The layer that the norm follows, if nobody else sees what is between."""
        views: list[Node] = []
        channel: int | None = 1
        value = norm.input
        while True:
            node = self._makers.get(value)
            if node is None:
                return _Refusal("NO-LAYER-BEFORE")
            layer = affine_of(node)
            source = _viewed(node)
            if layer is None and source is None:
                return _Refusal("NO-LAYER-BEFORE")
            name = layer.result.name if layer is not None else ""
            if value.name in self._returned:
                return _Refusal("CONV-RETURNED", name, value.name)
            if self._reads.get(value.name, 0) > 1:
                return _Refusal("CONV-READ-TWICE", name, value.name)
            if layer is not None:
                if layer.channel != channel or (views and layer.is_convolution):
                    return _Refusal("CHANNEL-MISMATCH", name)
                return _Pair(norm, layer, tuple(reversed(views)))
            assert source is not None, "a layer or a view"
            views.append(node)
            channel = _channel_before(node, source, value, channel)
            value = source

    def _objection(self, norm: BatchNorm, layer: Affine) -> str:
        """Why the weight of the layer cannot take the norm, or ""."""
        channels = layer.channels
        dtype = layer.weight.tensor.dtype
        sizes = [value.tensor.shape for value in norm.parameters()]
        known = self._weights.is_constant
        checks = (
            (not isinstance(channels, int), "SYMBOLIC-CHANNELS"),
            (any(shape != (channels,) for shape in sizes), "CHANNEL-MISMATCH"),
            (not known(layer.weight), "WEIGHT-NOT-CONSTANT"),
            (layer.bias is not None and not known(layer.bias), "BIAS-NOT-CONSTANT"),
            (not all(map(known, norm.parameters())), "STATS-NOT-CONSTANT"),
            (not dtype.is_floating_point or dtype.itemsize < 2, "DTYPE-MISMATCH"),
            (dtype != layer.result.tensor.dtype or dtype != norm.result.tensor.dtype, "DTYPE-MISMATCH"),
            (dtype is torch.float16 and not self._half, "HALF-RANGE"),
            (layer.weight.tensor.device.type == "mps", "NO-FLOAT64"),
            (layer.node.phase is not norm.node.phase, "OTHER-PHASE"),
        )
        return next((code for fails, code in checks if fails), "")

    # --- folding ------------------------------------------------------------------------------------------------

    def _fold(self, pair: _Pair, place: int) -> _Refusal | Folded:
        """Replace the norm, which is the newest node; or say why not, and change nothing."""
        norm, layer = pair.norm, pair.layer
        made, folded = self._weights.folded(norm, layer)
        nodes = self._layer(norm, layer, folded)
        make, value, last = self._weights.make, nodes[-1].results()[0], layer.result
        for old in pair.views:
            nodes.append(make.reinferred(_reading(old, last, value)))
            value, last = nodes[-1].results()[0], old.results()[0]
        if not lies_as_norms_do(value.tensor):
            laid = (("memory_format", torch.contiguous_format),)
            nodes.append(make.call(aten.clone.default, (value,), laid, name=norm.result.name, origin=norm.node.origin))
            value = nodes[-1].results()[0]
        if not make.look_alike(value, norm.result):
            self._weights.forget(norm, layer)
            return _Refusal("LAYOUT", layer.result.name)
        self.kept[place] = []
        for gone in (layer.node, *pair.views):
            self.kept[self._places[gone]].remove(gone)
        self._place([*made, *nodes], place)
        self._reads[value.name] = self._reads.get(norm.result.name, 0)
        if norm.result.name in self._returned:
            self._returned.add(value.name)
        self.asked.pop(layer.result.name, None)
        self.asked[nodes[0].results()[0].name] = folded.weight.name, folded.shift.name
        self._draft.merge(norm.result, value)
        return folded

    def _layer(self, norm: BatchNorm, layer: Affine, folded: Folded) -> list[Node]:
        """The layer over its new weight, and what adds the shift if that is not bias."""
        make, phase = self._weights.make, norm.node.phase
        target, args, kwargs = layer.with_weight(folded.weight, None if folded.is_added else folded.shift)
        first = make.call(target, args, kwargs, name=layer.result.name, origin=layer.node.origin, phase=phase)
        if not folded.is_added:
            return [first]
        operands = (first.results()[0], folded.shift)
        name = f"{norm.result.name}_shifted"
        return [first, make.call(aten.add.Tensor, operands, (), name=name, origin=norm.node.origin, phase=phase)]


_VIEWS: frozenset[Target] = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
    }
)


def _viewed(node: Node) -> Value | None:
    """What the node shows in another shape or order, if it does nothing else."""
    source = node.args[0] if node.target in _VIEWS and node.args else None
    tensors = [value for value in node.operands() if value.is_tensor]
    return source if isinstance(source, Value) and tensors == [source] else None


def _reading(node: Node, old: Value, new: Value) -> Node:
    return node.with_operands(lambda value: new if value is old else value)


def _channel_before(node: Node, source: Value, result: Value, channel: int | None) -> int | None:
    """The dimension of the source that is the dimension `channel` of the result; None if it is none."""
    if channel is None:
        return None
    rank = len(source.tensor.shape)
    order = list(range(rank))
    if node.target is aten.permute.default:
        dims = node.args[1]
        return _dims(dims, rank)[channel] if isinstance(dims, tuple | list) else None
    if node.target is aten.t.default or node.target is aten.transpose.int:
        swapped = (0, 1) if node.target is aten.t.default else node.args[1:3]
        if rank > 1:
            first, second = _dims(swapped, rank)
            order[first], order[second] = order[second], order[first]
        return order[channel]
    shape = result.tensor.shape
    is_last = channel == len(shape) - 1 and rank > 0
    return rank - 1 if is_last and isinstance(shape[-1], int) and shape[-1] == source.tensor.shape[-1] else None


def _dims(dims: Sequence[Operand], rank: int) -> list[int]:
    """Dimensions counted from the front."""
    return [dim % rank for dim in dims if isinstance(dim, int)]
