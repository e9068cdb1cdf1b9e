"""The nodes that compute the weight and the bias of a layer that also applies a batch norm.

Everything is computed in float64 from the parameters as they are, and rounded once. Equal requests share their nodes.

What the norm adds to each channel becomes a term of the sum that the layer computes, unless rounding would be worse
than eager's. With s the scale of a channel, b the layer's bias, d = (b - mean) * s + beta the folded shift,
S = sum |s * w * x| over the n terms of one element, and u the unit roundoff, forward error analysis bounds the error by

    eager:                        u * ((n + 1) * (S + |s * b|) + 4 * (S + |s * mean| + |beta|))
    d is a term of the sum:       u * (n + 2) * (S + |d|)               # a kernel that begins with it rounds it n times
    d is added to the sum:        u * ((n + 1) * S + 3 * (S + |d|))

The last is never above eager's by more than rounding of the weight, but costs another pass over the result. So the
shift is a term unless that bound, in the largest channel, is more than twice eager's. S depends on the input; the
statistics say how large it usually is: the sum of w * x has the mean `mean - b` and the variance `var`, and S is no
smaller. A mean of more than eight standard deviations is counted as eight: of inputs that are not just like those the
statistics were taken of, it says little.

Source: Higham, "Accuracy and Stability of Numerical Algorithms" (2nd ed., 2002), section 3.1. Cost: O(channels).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.program import Node, Operand, Program, Target, Value
from dovetail.ops.prims import TIMES_IN_FLOAT64
from dovetail.passes.linear_forms import Affine
from dovetail.passes.norm_forms import BatchNorm

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Folded:
    """The weight and the shift of a layer that does the work of a norm.

    is_added: whether the shift is added to what the layer gives, to which it is expanded, and is not its bias.
    """

    weight: Value
    shift: Value
    is_added: bool


class FoldedWeights:
    """Makes the nodes for one program. make: makes any node for it."""

    def __init__(
        self,
        program: Program,
        constants: Collection[Value],
        make: NodeMaker,
        contents: Mapping[str, torch.Tensor],
        *,
        frugal: bool = False,
    ) -> None:
        """constants: values of the program that are the same in every call. frugal: no weight is copied in float64.

        contents: the tensors of some inputs of the program, by name.
        """
        self.make = make
        self._contents = contents
        self._frugal = frugal
        self._constants = set(constants)
        self._made: dict[object, Folded] = {}

    def is_constant(self, value: Value) -> bool:
        """Whether a value, of the program or made here, is the same in every call."""
        return value in self._constants

    def follow(self, original: Node, node: Node) -> None:
        """Note that a node of the program has become another one."""
        for old, new in zip(original.outputs, node.outputs, strict=True):
            if old is not None and new is not None and old in self._constants:
                self._constants.add(new)

    def folded(self, norm: BatchNorm, layer: Affine) -> tuple[list[Node], Folded]:
        """The nodes that are not there yet, and what they make."""
        key = _key(norm, layer)
        if key in self._made:
            return [], self._made[key]
        is_added = _is_added_afterwards(norm, layer, self._contents)
        writer = _Writer(self.make, norm, self._frugal)
        scale = writer.scale()
        weight = writer.weight(layer, scale)
        found = self._made[key] = Folded(weight, writer.shift(layer, scale, is_added), is_added)
        self._constants |= {found.weight, found.shift}
        return writer.nodes, found

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

    def shift(self, layer: Affine, scale: Value, is_added: bool) -> Value:
        """What the norm adds to each channel, and the layer's bias as the norm scales it.

        is_added: the shift has dimensions of size 1 for those of the layer's result that follow its channels.
        """
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
        if not is_added:
            return self._narrow(shift, layer, "bias")
        after = len(layer.result.tensor.shape) - 1 - layer.channel
        shaped = self._call(aten.view.default, shift, [-1, *[1] * after]) if after else shift
        return self._narrow(shaped, layer, "shift")

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


_TRUSTED_DEVIATIONS = 8.0
_ALLOWED = 2.0


def _is_added_afterwards(norm: BatchNorm, layer: Affine, contents: Mapping[str, torch.Tensor]) -> bool:
    """Whether the shift stays out of the sum. contents: tensors by the names of values, as far as they are known.

    Without the contents of a bias or of the norm's tensors, the shift is a term. So it is in layers of 16 bits, whose
    kernels keep sums in float32.
    """
    needed = (*norm.parameters(), *(() if layer.bias is None else (layer.bias,)))
    if layer.weight.tensor.dtype.itemsize < 4 or any(value.name not in contents for value in needed):
        return False

    def read(value: Value | None, missing: float) -> torch.Tensor:
        if value is None:
            return torch.tensor(missing, dtype=torch.float64)
        return contents[value.name].detach().to("cpu", torch.float64)

    mean, var, bias = read(norm.mean, 0.0), read(norm.var, 1.0), read(layer.bias, 0.0)
    beta = read(norm.bias, 0.0)
    signed = read(norm.weight, 1.0) * (var + norm.eps).rsqrt()
    scale = signed.abs()
    offset = (mean - bias).square().minimum(_TRUSTED_DEVIATIONS**2 * var)
    size = scale * (var + offset).sqrt()
    shift = ((bias - mean) * signed + beta).abs()
    terms = _terms(layer)
    eager = (terms + 1) * (size + scale * bias.abs()) + 4 * (size + scale * mean.abs() + beta.abs())
    folded = (terms + 2) * (size + shift)
    return bool(folded.max() > _ALLOWED * eager.max())


def _terms(layer: Affine) -> int:
    """How many products are added up in one element of the result."""
    count = 1
    for dim, size in enumerate(layer.weight.tensor.shape):
        if dim != layer.weight_channel % len(layer.weight.tensor.shape):
            assert isinstance(size, int), "constants have known sizes"
            count *= size
    return count // layer.groups
