"""Compute products and convolutions by constant weights in bfloat16.

    a = mm(x, t(w))                        w16 = _to_copy(w, bfloat16)                       # constants, in files too
    b = add(a, bias)                 ->    packed = PACK_LINEAR(w16, rows)                   # once, where it runs
    c = gelu(b)                            x16 = _to_copy(x, bfloat16)
    d = mm(c, t(v))                        c16 = packed_linear("gelu")(x16, packed, bias16)
                                           d16 = packed_linear("none")(c16, packed_1, None)
                                           d = _to_copy(d16, float32)

Sums are of float32; what is rounded to 8 bits of fraction are operands and results. A layer that reads the result of
another one reads it in bfloat16, also through operators that only choose and arrange numbers; everything else (norms,
softmax, sums of residuals) stays in float32. Weights take half of their bytes.

Layers are left alone where they are too small to gain.

Source: Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training" (2019).
Cost: O(nodes + operands), and a run on fake tensors for each node that follows a convolution. Not checked: that this
processor has instructions for it (`torch_compat.onednn_low_precision`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Operand, Program, Target, Value
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, packed_conv, packed_linear
from dovetail.ops.rounding import commutes_with_rounding
from dovetail.passes.convolution_forms import CHANNELS_LAST, has_channels_last
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.layer_calls import ConvolutionCall, LinearCall, convolution_calls, linear_call_of, uses_of
from dovetail.passes.layer_rewrites import (
    expected_size,
    expected_sizes,
    grows,
    multiplications,
    shown_through,
    unflattened,
)

aten = torch.ops.aten

# Elements of a product's weight, and multiplications of a convolution, from which on it is faster (measured on one
# thread, AVX-512 with AMX). The number of rows does not count, or the programs of a method would round differently and
# hold weights in two forms.
_LARGE_WEIGHT = 1 << 16
_LARGE_CONVOLUTION = 1 << 20


@dataclass(frozen=True, slots=True)
class NarrowReport:
    """What `narrow` did.

    asked: names of values that must become constants. opaque: those of them that no file can hold. layers: names of the
    results of products and convolutions in bfloat16. casts: how many tensors are rounded in each call. left: names of
    the results of other products and convolutions, with the reason.
    """

    asked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    casts: int = 0
    left: tuple[tuple[str, str], ...] = ()

    @property
    def changed(self) -> int:
        """How many layers compute in fewer bits."""
        return len(self.layers)

    def __str__(self) -> str:
        weights = f"of {len(self.opaque)} weights, {self.casts} tensors rounded in each call"
        return f"{len(self.layers)} products and convolutions in bfloat16, {weights}; left {len(self.left)}"


def narrow(program: Program, constants: Collection[str], infer: MetaInference) -> tuple[Program, NarrowReport]:
    """The program whose products and convolutions by constant weights are in bfloat16, where that pays.

    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    Not checked: that the weights' new forms become constants; if they do not, they are made in each call.
    """
    plan = _planned(program, constant_values(program, constants))
    if not plan.linears and not plan.convolutions:
        return program, NarrowReport(left=tuple(plan.left))
    narrower = _Narrower(program, infer)
    calls: list[LinearCall | ConvolutionCall] = [*plan.linears.values(), *plan.convolutions.values()]
    covered = {node for call in calls for node in call.nodes}
    for node in program.nodes:
        if node in plan.linears:
            narrower.multiply(plan.linears[node])
        elif node in plan.convolutions:
            narrower.convolve(plan.convolutions[node])
        elif node not in covered:
            narrower.state.follow(node)
    made, _ = remove_dead_code(narrower.state.finish())
    asked = tuple(value.name for value in narrower.plain)
    packed = tuple(value.name for value in narrower.packed.values())
    return made, NarrowReport(
        (*asked, *packed), packed, tuple(narrower.layers), narrower.casts_in(made), tuple(plan.left)
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The calls in bfloat16, each by the last node that it stands for; other layers, with the reason."""

    linears: dict[Node, LinearCall] = field(default_factory=dict)
    convolutions: dict[Node, ConvolutionCall] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)


def _planned(program: Program, known: frozenset[Value]) -> _Plan:
    uses, plan = uses_of(program), _Plan()
    for node in program.nodes:
        call = linear_call_of(node, uses, known)
        if isinstance(call, LinearCall):
            reason = _too_small(call) or grows(call.matrix, uses.producers, itemsize=2)
            if reason is None:
                plan.linears[call.nodes[-1]] = call
            else:
                plan.left.append((call.result.name, reason))
        elif call is not None:
            plan.left.append((node.results()[0].name, call))
    calls, others = convolution_calls(program, uses, known)
    plan.left.extend(others)
    for convolution in calls:
        work = multiplications(convolution)
        reason = f"SMALL: {work} multiplications are faster in float32" if work < _LARGE_CONVOLUTION else None
        reason = reason or grows(convolution.form.weight, uses.producers, itemsize=2)
        if reason is None:
            plan.convolutions[convolution.nodes[-1]] = convolution
        else:
            plan.left.append((convolution.result.name, reason))
    return plan


def _too_small(call: LinearCall) -> str | None:
    inner, outer = call.matrix.tensor.shape
    assert isinstance(inner, int) and isinstance(outer, int), "constants have known sizes"
    large = inner * outer >= _LARGE_WEIGHT
    return None if large else f"SMALL: a product by [{inner}, {outer}] is faster in float32"


class _Narrower:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.state = LayoutPropagation(program, infer)
        self.packed: dict[object, Value] = {}
        self.plain: list[Value] = []  # constants in bfloat16
        self.layers: list[str] = []
        self._infer = infer
        self._producers: Mapping[Value, Node] = program.producers()
        self._narrow: dict[Value, Value] = {}  # by the value of the old program
        self._constants: dict[Value, Value] = {}
        self._casts: list[Value] = []

    def multiply(self, call: LinearCall) -> None:
        """Add the product, and give its result the shape and the dtype that it had."""
        first, key = call.nodes[0], call.matrix if call.weight is None else call.weight
        whole = unflattened(call, self._producers)
        given, views = (call.x, call.views) if whole is None else (whole, ())
        x, bias = self._narrowed(given, first), self._constant(call.bias, first)
        if key not in self.packed:
            weight = self._constant(key, first)
            assert weight is not None, "products have weights"
            if call.weight is None:
                weight = self._added(aten.t.default, (weight,), f"{key.name}_t", first)
            rows = expected_size(call.x.tensor.shape[0], self._infer)
            self.packed[key] = self._added(PACK_LINEAR, (weight, rows), f"{key.name}_packed", first)
        node = self._made(packed_linear(call.activation), (x, self.packed[key], bias), call, first)
        self._finish(shown_through(self.state, node, views), call.nodes[-1])

    def convolve(self, call: ConvolutionCall) -> None:
        """Add the convolution, and give its result the dtype that it had."""
        form, first = call.form, call.form.node
        x, bias = self._narrowed(form.x, first, is_image=True), self._constant(form.bias, first)
        geometry = (form.padding, form.stride, form.dilation, form.groups)
        expected = expected_sizes(x.tensor.shape, self._infer)
        key: object = (form.weight, str((*geometry, expected)))
        if key not in self.packed:
            weight = self._constant(form.weight, first)
            self.packed[key] = self._added(
                PACK_CONV, (weight, *geometry, expected), f"{form.weight.name}_packed", first
            )
        addend = () if call.addend is None else (self._narrowed(call.addend, first, is_image=True),)
        node = self._made(packed_conv(call.activation), (x, self.packed[key], bias, *geometry, *addend), call, first)
        self._finish(node, call.nodes[-1])

    def casts_in(self, program: Program) -> int:
        """How many tensors are rounded in each call of what has become of the program."""
        made = program.producers()
        return sum(value in made for value in self._casts)

    # --- results ------------------------------------------------------------------------------------------------

    def _made(self, target: Target, args: tuple[Operand, ...], call: LinearCall | ConvolutionCall, like: Node) -> Node:
        name = f"{call.result.name}_bf16"
        return self.state.maker.call(target, args, name=name, origin=like.origin, phase=like.phase)

    def _finish(self, node: Node, last: Node) -> None:
        """Add a node that gives a layer's result in bfloat16, and what stands for the result."""
        (result,), small = last.results(), self.state.add(node)
        self._narrow[result] = small
        kwargs = (("dtype", torch.float32),)
        wide = self.state.maker.call(
            aten._to_copy.default, (small,), kwargs, name=result.name, origin=last.origin, phase=last.phase
        )
        self.state.stand_in(wide, last.outputs)
        self.layers.append(self.state.current(result).name)

    # --- operands -----------------------------------------------------------------------------------------------

    def _narrowed(self, value: Value, like: Node, *, is_image: bool = False) -> Value:
        """A value of the old program in bfloat16."""
        found = self._there(value)
        if found is None:
            kwargs: tuple[tuple[str, Operand], ...] = (("dtype", torch.bfloat16),)
            wide = self.state.current(value)
            if is_image and not has_channels_last(wide.tensor):
                kwargs = (*kwargs, ("memory_format", CHANNELS_LAST[len(wide.tensor.shape)]))
            found = self._added(aten._to_copy.default, (wide,), f"{value.name}_bf16", like, kwargs)
            self._casts.append(found)
            self._narrow[value] = found
        return found

    def _there(self, value: Value) -> Value | None:
        """A value in bfloat16 if that costs no rounding, because it is arranged of values that are there."""
        if value in self._narrow or value not in self._producers:
            return self._narrow.get(value)
        node = self._producers[value]
        if node.outputs[0] is not value or not commutes_with_rounding(node):
            return None
        (operand,) = node.operands()
        below = self._there(operand)
        if below is None:
            return None
        again = self.state.described(node.with_operands(lambda _: below))
        if again is None:
            return None
        small, *others = again.outputs
        self._narrow[value] = self.state.add(again.giving((small, *(None for _ in others))))
        return self._narrow[value]

    def _constant(self, value: Value | None, like: Node) -> Value | None:
        """A constant in bfloat16, which is computed once."""
        if value is None:
            return None
        if value not in self._constants:
            args, kwargs = (self.state.current(value),), (("dtype", torch.bfloat16),)
            made = self._added(aten._to_copy.default, args, f"{value.name}_bf16", like, kwargs)
            self._constants[value] = made
            self.plain.append(made)
        return self._constants[value]

    def _added(
        self,
        target: Target,
        args: tuple[Operand, ...],
        name: str,
        like: Node,
        kwargs: tuple[tuple[str, Operand], ...] = (),
    ) -> Value:
        node = self.state.maker.call(target, args, kwargs, name=name, origin=like.origin, phase=like.phase)
        return self.state.add(node)
