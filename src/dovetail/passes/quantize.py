"""Multiply by constant weights in 8-bit integers: weights per output channel, inputs row by row.

    a = mm(x, t(w))                        s = ROW_SCALES(w);  few = QUANTIZE_WEIGHT(w, s)   # constants, in files too
    b = add(a, bias)                 ->    n = WEIGHT_SUMS(few, s)
    c = gelu(b)                            packed = PACK_INT8(few, rows)                     # once, where it runs
                                           r = ROW_RANGES(x);  q = QUANTIZE_ROWS(x, r)
                                           c = int8_linear("gelu")(q, packed, r, s, n, bias)

Inputs are rounded to 256 levels in each call, each row with a range of its own ("dynamic"), so no data is needed for
calibration, and results of a row do not depend on others. Products that read one tensor share its levels. Sums are
exact. A weight takes a quarter of its bytes.

Convolutions stay in float32. Products are left alone where their weights are too small to gain.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"
(2018); Yao et al., "ZeroQuant" (2022), for scales of rows.
Cost: O(nodes + operands). Not checked: that this processor computes such products as it should
(`torch_compat.onednn_low_precision`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.quantized import (
    PACK_INT8,
    QUANTIZE_ROWS,
    QUANTIZE_WEIGHT,
    ROW_RANGES,
    ROW_SCALES,
    WEIGHT_SUMS,
    int8_linear,
)
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.layer_calls import LinearCall, linear_call_of, uses_of
from dovetail.passes.layer_rewrites import expected_size, grows, shown_through, unflattened
from dovetail.torch_compat.onednn_low_precision import MOST_TERMS

aten = torch.ops.aten

# Rounding an input takes longer than is gained if its weight is smaller (measured on one thread, AVX-512 with AMX). The
# number of rows does not count, or the programs of a method would round differently and hold weights in two forms.
_LARGE_WEIGHT = 1 << 17


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What `quantize` did.

    asked: names of values that must become constants. opaque: those of them that no file can hold. linears: names of
    the results of products in 8 bits. left: names of the results of other products, with the reason.
    """

    asked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    @property
    def changed(self) -> int:
        """How many layers compute in fewer bits."""
        return len(self.linears)

    def __str__(self) -> str:
        return f"{len(self.linears)} products in int8, of {len(self.opaque)} weights; left {len(self.left)}"


def quantize(program: Program, constants: Collection[str], infer: MetaInference) -> tuple[Program, QuantizeReport]:
    """The program whose products by constant weights are of 8-bit integers, where that pays.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Not checked: that the weights' new forms become constants; if they do not, they are made in each call.
    """
    known = constant_values(program, constants)
    uses = uses_of(program)
    found: dict[Node, LinearCall] = {}
    left: list[tuple[str, str]] = []
    for node in program.nodes:
        call = linear_call_of(node, uses, known)
        if isinstance(call, LinearCall):
            reason = _too_small(call) or grows(call.matrix, uses.producers, itemsize=1)
            if reason is None:
                found[call.nodes[-1]] = call
            else:
                left.append((call.result.name, reason))
        elif call is not None:
            left.append((node.results()[0].name, call))
    if not found:
        return program, QuantizeReport(left=tuple(left))
    covered = {node for call in found.values() for node in call.nodes}
    quantizer = _Quantizer(program, infer)
    for node in program.nodes:
        if node in found:
            quantizer.multiply(found[node])
        elif node not in covered:
            quantizer.state.follow(node)
    made, _ = remove_dead_code(quantizer.state.finish())
    packed = tuple(weight.packed.name for weight in quantizer.weights.values())
    plain = tuple(
        value.name for weight in quantizer.weights.values() for value in (weight.levels, weight.scales, weight.sums)
    )
    return made, QuantizeReport((*plain, *packed), packed, tuple(quantizer.linears), tuple(left))


def _too_small(call: LinearCall) -> str | None:
    """Why a product is not worth it."""
    inner, outer = call.matrix.tensor.shape
    assert isinstance(inner, int) and isinstance(outer, int), "constants have known sizes"
    if inner > MOST_TERMS:
        return f"WIDE: sums of {inner} products may not fit in 32 bits"
    large = inner * outer >= _LARGE_WEIGHT
    return None if large else f"SMALL: a product by [{inner}, {outer}] is faster in float32"


@dataclass(frozen=True, slots=True)
class _Weight:
    levels: Value
    scales: Value
    sums: Value
    packed: Value


class _Quantizer:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.state = LayoutPropagation(program, infer)
        self.weights: dict[Value, _Weight] = {}
        self.linears: list[str] = []
        self._infer = infer
        self._producers = program.producers()
        self._rows: dict[Value, tuple[Value, Value]] = {}

    def multiply(self, call: LinearCall) -> None:
        """Add the product in 8 bits, and give its result the shape that it had."""
        state, first = self.state, call.nodes[0]
        whole = unflattened(call, self._producers)
        x, views = (call.x, call.views) if whole is None else (whole, ())
        levels, ranges = self._rounded(state.current(x), first)
        weight = self._weight(call)
        bias = None if call.bias is None else state.current(call.bias)
        name = (call.result if not views else first.results()[0]).name
        args = (levels, weight.packed, ranges, weight.scales, weight.sums, bias)
        node = state.maker.call(int8_linear(call.activation), args, name=name, origin=first.origin, phase=first.phase)
        state.stand_in(shown_through(state, node, views), call.nodes[-1].outputs)
        self.linears.append(state.current(call.result).name)

    def _rounded(self, x: Value, like: Node) -> tuple[Value, Value]:
        """The levels and the ranges of an input's rows."""
        if x not in self._rows:
            ranges = self._added(ROW_RANGES, (x,), f"{x.name}_ranges", like)
            self._rows[x] = self._added(QUANTIZE_ROWS, (x, ranges), f"{x.name}_levels", like), ranges
        return self._rows[x]

    def _weight(self, call: LinearCall) -> _Weight:
        like, key = call.nodes[0], self.state.current(call.matrix if call.weight is None else call.weight)
        if key not in self.weights:
            weight = key
            if call.weight is None:
                weight = self._added(aten.t.default, (key,), f"{key.name}_t", like)
            scales = self._added(ROW_SCALES, (weight,), f"{key.name}_scales", like)
            levels = self._added(QUANTIZE_WEIGHT, (weight, scales), f"{key.name}_levels", like)
            sums = self._added(WEIGHT_SUMS, (levels, scales), f"{key.name}_sums", like)
            rows = expected_size(call.x.tensor.shape[0], self._infer)
            packed = self._added(PACK_INT8, (levels, rows), f"{key.name}_packed", like)
            self.weights[key] = _Weight(levels, scales, sums, packed)
        return self.weights[key]

    def _added(self, target: object, args: tuple[Value | int | None, ...], name: str, like: Node) -> Value:
        assert callable(target), "primitives and operators are called"
        node = self.state.maker.call(target, args, name=name, origin=like.origin, phase=like.phase)
        return self.state.add(node)
