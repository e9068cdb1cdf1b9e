"""Pack constant weights for the kernels that read them.

A kernel for a product or a convolution first copies its weight into blocks, in each call. A constant weight is packed
into these blocks once; the kernel for packed weights also adds a bias or another tensor, and applies an activation,
while it writes its result.

    t = t(w)                               packed = pack_linear(w, 640)          # once, when the program is frozen
    a = view(x, [640, 8])                  e = packed_linear_gelu(x, packed, bias)
    b = mm(a, t)                     ->
    c = view(b, [128, 5, 16])
    d = add(c, bias)
    e = gelu(d)

A packed weight is opaque and fits only this machine, so it must not be written to a file: it is evaluated in memory
where the program runs. It serves inputs with any number of rows. Convolutions return channels-last results; later
values get new descriptions, and outputs keep their strides (`analysis.propagate_layouts`).

Products and convolutions are left alone where they are too small to gain: the packed kernels take longer to start.

Cost: O(nodes + operands), and a run on fake tensors for each node that follows a convolution. Other kernels round
differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, packed_conv, packed_linear
from dovetail.passes.convolution_forms import has_channels_last
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.layer_calls import (
    ConvolutionCall,
    LinearCall,
    convolution_calls,
    linear_call_of,
    read_otherwise,
    uses_of,
)
from dovetail.passes.layer_rewrites import (
    expected_size,
    expected_sizes,
    grows,
    is_read_in_order,
    multiplications,
    shown_through,
    unflattened,
)
from dovetail.torch_compat.onednn import has_onednn

aten = torch.ops.aten

# A packed product of fewer rows is slower than one by the plain weight, unless the weight is read but once or twice;
# so is one by a small weight, unless there are many rows (measured on one thread, AVX-512).
_FEWEST_ROWS = 4
_LARGE_WEIGHT = 1 << 18
_LARGE_PRODUCT = 1 << 24
# Multiplications of a convolution. One of several groups gains always.
_LARGE_CONVOLUTION = 1 << 8

_SHARED = "SHARED: its weight is read in another way, too, and would be held twice"
_NO_ONEDNN = "NO-ONEDNN: this torch has no kernels for packed weights"


@dataclass(frozen=True, slots=True)
class PrepackReport:
    """What `prepack` did.

    asked: names of the packed weights, which must become constants. opaque: those of them that no file can hold: all.
    linears, convolutions: names of the results of packed calls. fused: of these, with the activation and what is added
    (a name, or ""). copies: names of the values that are copied to another layout in each call. left: names of other
    results of products and convolutions, with the reason.
    """

    asked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    convolutions: tuple[str, ...] = ()
    fused: tuple[tuple[str, str, str], ...] = ()
    copies: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return (
            f"packed {len(self.asked)} weights for {len(self.linears)} products and {len(self.convolutions)}"
            f" convolutions, fused {len(self.fused)} with later nodes, {len(self.copies)} copies,"
            f" left {len(self.left)}"
        )


def prepack(program: Program, constants: Collection[str], infer: MetaInference) -> tuple[Program, PrepackReport]:
    """The program whose products and convolutions by constant weights read packed weights, where that pays.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Without oneDNN in this torch, the program stays as it is. Not checked: that the packed weights become constants; if
    they do not, they are packed in each call.
    """
    left: list[tuple[str, str]] = []
    plan = _plan(program, constant_values(program, constants), left)
    if not has_onednn():
        left = [*left, *((call.result.name, _NO_ONEDNN) for call in plan.calls())]
        return program, PrepackReport(left=tuple(left))
    made, report = _rewritten(program, infer, plan, left)
    if report.convolutions and len(report.copies) > len(report.convolutions):
        reason = f"COPIES: {len(report.copies)} values would be copied for {len(report.convolutions)} convolutions"
        left = [*left, *((call.result.name, reason) for call in plan.convolutions.values())]
        made, report = _rewritten(program, infer, _Plan(plan.linears, {}), left)
    return made, report


@dataclass(frozen=True, slots=True)
class _Plan:
    """The packed calls, each by the last node that it stands for."""

    linears: dict[Node, LinearCall] = field(default_factory=dict)
    convolutions: dict[Node, ConvolutionCall] = field(default_factory=dict)

    def calls(self) -> list[LinearCall | ConvolutionCall]:
        """All of them."""
        return [*self.linears.values(), *self.convolutions.values()]

    def covered(self) -> set[Node]:
        """The nodes that no longer run."""
        return {node for call in self.calls() for node in call.nodes}


def _plan(program: Program, known: frozenset[Value], left: list[tuple[str, str]]) -> _Plan:
    uses = uses_of(program)
    producers = uses.producers
    linears: dict[Node, LinearCall] = {}
    for node in program.nodes:
        call = linear_call_of(node, uses, known)
        reason = call if isinstance(call, str) else _left_alone(call, producers) if call is not None else None
        if reason is not None:
            left.append((node.results()[0].name, reason))
        elif isinstance(call, LinearCall):
            linears[call.nodes[-1]] = call
    left.extend((linears.pop(node).result.name, _SHARED) for node in read_otherwise(linears, uses))
    calls, others = convolution_calls(program, uses, known)
    left.extend(others)
    small = {
        call: reason
        for call in calls
        if (reason := _too_small_convolution(call) or grows(call.form.weight, producers)) is not None
    }
    left.extend((call.form.result.name, reason) for call, reason in small.items())
    return _Plan(linears, {call.nodes[-1]: call for call in calls if call not in small})


def _left_alone(call: LinearCall, producers: Mapping[Value, Node]) -> str | None:
    in_order = "IN-ORDER: a plain weight, stored as BLAS reads it, is as fast"
    is_in_order = call.weight is None and is_read_in_order(call)
    return _too_small(call) or (in_order if is_in_order else None) or grows(call.matrix, producers)


def _too_small(call: LinearCall) -> str | None:
    """Why a product is not worth a packed weight. Of a symbolic number of rows, many are expected."""
    rows, (inner, outer) = call.x.tensor.shape[0], call.matrix.tensor.shape
    assert isinstance(inner, int) and isinstance(outer, int), "constants have known sizes"
    large = inner * outer >= _LARGE_WEIGHT
    if isinstance(rows, int):
        large = (large and rows >= _FEWEST_ROWS) or rows * inner * outer >= _LARGE_PRODUCT
    return None if large else f"SMALL: [{rows}, {inner}] @ [{inner}, {outer}] is faster with the plain weight"


def _too_small_convolution(call: ConvolutionCall) -> str | None:
    """Why a convolution is not worth a packed weight."""
    work = multiplications(call)
    is_large = work >= _LARGE_CONVOLUTION or call.form.groups > 1
    return None if is_large else f"SMALL: {work} multiplications are faster with the plain weight"


def _rewritten(
    program: Program, infer: MetaInference, plan: _Plan, left: list[tuple[str, str]]
) -> tuple[Program, PrepackReport]:
    if not plan.linears and not plan.convolutions:
        return program, PrepackReport(left=tuple(left))
    packer = _Packer(program, infer)
    covered = plan.covered()
    for node in program.nodes:
        if node in plan.linears:
            packer.multiply(plan.linears[node])
        elif node in plan.convolutions:
            packer.convolve(plan.convolutions[node])
        elif node not in covered:
            packer.state.follow(node)
    made, _ = remove_dead_code(packer.state.finish())
    names = tuple(value.name for value in packer.packed.values())
    copies = (*packer.converted, *packer.state.copies_in(made))
    report = PrepackReport(
        asked=names,
        opaque=names,
        linears=tuple(packer.linears),
        convolutions=tuple(packer.convolutions),
        fused=tuple(packer.fused),
        copies=copies,
        left=tuple(left),
    )
    return made, report


class _Packer:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.state = LayoutPropagation(program, infer)
        self.packed: dict[object, Value] = {}
        self.linears: list[str] = []
        self.convolutions: list[str] = []
        self.fused: list[tuple[str, str, str]] = []
        self.converted: list[str] = []  # images that come otherwise
        self._infer = infer
        self._producers = program.producers()

    def multiply(self, call: LinearCall) -> None:
        """Add the packed call, and give its result the shape that it had."""
        state, first = self.state, call.nodes[0]
        whole = unflattened(call, self._producers)
        x, views = (call.x, call.views) if whole is None else (whole, ())
        bias = None if call.bias is None else state.current(call.bias)
        args = (state.current(x), self._packed_matrix(call), bias)
        name = (call.result if not views else first.results()[0]).name
        node = state.maker.call(packed_linear(call.activation), args, name=name, origin=first.origin, phase=first.phase)
        node = shown_through(state, node, views)
        state.stand_in(node, call.nodes[-1].outputs)
        self.linears.append(state.current(call.result).name)
        self._note(call.result, call.activation, None)

    def convolve(self, call: ConvolutionCall) -> None:
        """Add the packed call."""
        state, form = self.state, call.form
        x = state.current(form.x)
        if not has_channels_last(x.tensor):
            self.converted.append(x.name)
        geometry = (form.padding, form.stride, form.dilation, form.groups)
        weight = state.current(form.weight)
        packed = self._packed(PACK_CONV, weight, (*geometry, expected_sizes(x.tensor.shape, self._infer)), form.node)
        bias = None if form.bias is None else state.current(form.bias)
        addend = () if call.addend is None else (state.current(call.addend),)
        args = (x, packed, bias, *geometry, *addend)
        origin, phase = form.node.origin, form.node.phase
        node = state.maker.call(packed_conv(call.activation), args, name=call.result.name, origin=origin, phase=phase)
        state.stand_in(node, call.nodes[-1].outputs)
        self.convolutions.append(state.current(call.result).name)
        self._note(call.result, call.activation, call.addend)

    # --- weights ------------------------------------------------------------------------------------------------

    def _packed_matrix(self, call: LinearCall) -> Value:
        first, rows = call.nodes[0], expected_size(call.x.tensor.shape[0], self._infer)
        weight = None if call.weight is None else self.state.current(call.weight)
        if weight is None:
            matrix = self.state.current(call.matrix)
            key = ("t", matrix)
            if key not in self.packed:
                node = self.state.maker.call(aten.t.default, (matrix,), name=f"{matrix.name}_t", origin=first.origin)
                return self._packed(PACK_LINEAR, self.state.add(node), (rows,), first, key)
            return self.packed[key]
        return self._packed(PACK_LINEAR, weight, (rows,), first, ("linear", weight))

    def _packed(self, pack: object, weight: Value, args: tuple[object, ...], like: Node, key: object = None) -> Value:
        key = (weight, str(args)) if key is None else key
        if key not in self.packed:
            assert callable(pack), "packing is a primitive"
            name = f"{weight.name}_packed"
            node = self.state.maker.call(pack, (weight, *args), name=name, origin=like.origin)
            self.packed[key] = self.state.add(node)
        return self.packed[key]

    # --- operands -----------------------------------------------------------------------------------------------

    def _note(self, result: Value, activation: str, addend: Value | None) -> None:
        if activation != "none" or addend is not None:
            added = "" if addend is None else self.state.current(addend).name
            self.fused.append((self.state.current(result).name, activation, added))
