"""The nodes that compute the weight and the bias of a layer that does the work of a batch norm, too.

Everything is computed in float64 from the parameters as they are, and rounded once. Equal wishes share their nodes.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.program import Node, Operand, Program, Target, Value
from dovetail.ops.prims import TIMES_IN_FLOAT64
from dovetail.passes.linear_forms import Affine
from dovetail.passes.norm_forms import BatchNorm

aten = torch.ops.aten


class FoldedWeights:
    """Makes the nodes for one program. make: makes any node for it."""

    def __init__(
        self, program: Program, constants: Collection[Value], make: NodeMaker, *, frugal: bool = False
    ) -> None:
        """constants: values of the program that are the same in every call. frugal: no weight is copied in float64."""
        self.make = make
        self._frugal = frugal
        self._constants = set(constants)
        self._made: dict[object, tuple[Value, Value]] = {}

    def is_constant(self, value: Value) -> bool:
        """Whether a value, of the program or made here, is the same in every call."""
        return value in self._constants

    def follow(self, original: Node, node: Node) -> None:
        """Note that a node of the program has become another one."""
        for old, new in zip(original.outputs, node.outputs, strict=True):
            if old is not None and new is not None and old in self._constants:
                self._constants.add(new)

    def folded(self, norm: BatchNorm, layer: Affine) -> tuple[list[Node], Value, Value]:
        """The nodes that are not there yet, and the weight and the bias that they make."""
        key = _key(norm, layer)
        if key in self._made:
            return [], *self._made[key]
        writer = _Writer(self.make, norm, self._frugal)
        scale = writer.scale()
        weight = writer.weight(layer, scale)
        bias = writer.bias(layer, scale)
        self._made[key] = weight, bias
        self._constants |= {weight, bias}
        return writer.nodes, weight, bias

    def forget(self, norm: BatchNorm, layer: Affine) -> None:
        """The nodes for these were not added to the program."""
        self._made.pop(_key(norm, layer), None)


def _key(norm: BatchNorm, layer: Affine) -> object:
    weights = (layer.weight, layer.bias, layer.weight_channel, layer.groups)
    return (weights, norm.weight, norm.bias, norm.mean, norm.var, float(norm.eps))


class _Writer:
    """Nodes for one layer and one norm."""

    def __init__(self, make: NodeMaker, norm: BatchNorm, frugal: bool) -> None:
        self.nodes: list[Node] = []
        self._frugal = frugal
        self._make = make
        self._norm = norm

    def scale(self) -> Value:
        """`weight / sqrt(var + eps)` in float64, one number a channel."""
        norm = self._norm
        assert norm.var is not None, "a norm that does not train has statistics"
        inverse = self._call(aten.rsqrt.default, self._call(aten.add.Tensor, self._wide(norm.var), float(norm.eps)))
        return inverse if norm.weight is None else self._call(aten.mul.Tensor, inverse, self._wide(norm.weight))

    def weight(self, layer: Affine, scale: Value) -> Value:
        """The layer's weight times the scale of each output channel."""
        shape = layer.weight.tensor.shape
        dims = len(shape)
        if layer.groups > 1:  # the channels of a group repeat for each of the group's inputs
            inputs, outputs = shape[0], shape[1]
            assert isinstance(inputs, int) and isinstance(outputs, int), "constants have known sizes"
            each = inputs // layer.groups
            scale = self._call(aten.view.default, scale, [layer.groups, 1, outputs])
            scale = self._call(aten.expand.default, scale, [layer.groups, each, outputs])
            scale = self._call(aten.clone.default, scale, memory_format=torch.contiguous_format)
            scale = self._call(aten.view.default, scale, [inputs, outputs, *[1] * (dims - 2)])
        else:
            place = [-1 if dim == layer.weight_channel else 1 for dim in range(dims)]
            scale = self._call(aten.view.default, scale, place)
        if self._frugal:
            return self._call(TIMES_IN_FLOAT64, layer.weight, scale, wish=f"{self._norm.result.name}_weight")
        scaled = self._call(aten.mul.Tensor, self._wide(layer.weight), scale)
        return self._narrow(scaled, layer, "weight")

    def bias(self, layer: Affine, scale: Value) -> Value:
        """What the norm adds to each channel, and the layer's bias as the norm scales it."""
        norm = self._norm
        assert norm.mean is not None, "a norm that does not train has statistics"
        mean = self._wide(norm.mean)
        if layer.bias is None:
            centred = self._call(aten.neg.default, mean)
        else:
            centred = self._call(aten.sub.Tensor, self._wide(layer.bias), mean)
        shift = self._call(aten.mul.Tensor, centred, scale)
        if norm.bias is not None:
            shift = self._call(aten.add.Tensor, shift, self._wide(norm.bias))
        return self._narrow(shift, layer, "bias")

    def _wide(self, value: Value) -> Value:
        return self._call(aten._to_copy.default, value, dtype=torch.float64)

    def _narrow(self, value: Value, layer: Affine, what: str) -> Value:
        wish = f"{self._norm.result.name}_{what}"
        return self._call(aten._to_copy.default, value, wish=wish, dtype=layer.weight.tensor.dtype)

    def _call(self, target: Target, *args: Operand, wish: str = "", **kwargs: Operand) -> Value:
        norm = self._norm.node
        name = wish or f"{self._norm.result.name}_part"
        named = tuple(kwargs.items())
        node = self._make.call(target, args, named, name=name, origin=norm.origin, phase=norm.phase)
        self.nodes.append(node)
        return node.results()[0]
