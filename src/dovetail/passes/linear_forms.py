"""The forms in which programs hold convolutions and linear layers, read as one thing: an affine map with a weight.

convolution(x, w, b, ...)   conv2d(x, w, b)   conv_transpose2d(x, w, b)   ...
addmm(b, x, w)   mm(x, w)   linear(x, w, b)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail.ir.program import Node, Operand, Target, Value
from dovetail.ir.sizes import Size
from dovetail.ops.arguments import arguments_of, with_arguments

aten = torch.ops.aten

_CONVOLUTIONS: frozenset[Target] = frozenset(
    {
        aten.convolution.default,
        aten.conv1d.default,
        aten.conv1d.padding,
        aten.conv2d.default,
        aten.conv2d.padding,
        aten.conv3d.default,
        aten.conv3d.padding,
    }
)
_TRANSPOSED: frozenset[Target] = frozenset(
    {aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input}
)


@dataclass(frozen=True, slots=True)
class Affine:
    """A convolution or a linear layer. result: what it gives. groups: of a transposed convolution, else 1.

    channel: the dimension of the result that counts output channels. weight_channel: the dimension of the weight that
    does; in a transposed convolution of several groups it counts those of one group.
    """

    node: Node
    result: Value
    input: Value
    weight: Value
    bias: Value | None
    channel: int
    weight_channel: int
    groups: int = 1

    @property
    def is_convolution(self) -> bool:
        """Whether it is not a linear layer."""
        return self.node.target in _CONVOLUTIONS or self.node.target in _TRANSPOSED

    @property
    def channels(self) -> Size:
        """How many output channels there are."""
        size = self.weight.tensor.shape[self.weight_channel]
        return size * self.groups if isinstance(size, int) else size

    def with_weight(
        self, weight: Value, bias: Value | None
    ) -> tuple[Target, tuple[Operand, ...], tuple[tuple[str, Operand], ...]]:
        """The call of the same map with another weight and bias."""
        if self.node.target is aten.mm.default or self.node.target is aten.addmm.default:
            if bias is None:
                return aten.mm.default, (self.input, weight), ()
            return aten.addmm.default, (bias, self.input, weight), ()
        node = with_arguments(self.node, {"weight": weight, "bias": bias})
        return node.target, node.args, node.kwargs


def affine_of(node: Node) -> Affine | None:
    """The node as an affine map; None for any other, and for maps whose result is scaled or whose bias is a matrix."""
    target = node.target
    if target in _CONVOLUTIONS or target in _TRANSPOSED:
        return _convolution(node)
    if target is aten.linear.default:
        given = arguments_of(node)
        return _affine(node, given["input"], given["weight"], given["bias"], (-1, 0))
    if target is aten.mm.default:
        return _affine(node, node.args[0], node.args[1], None, (1, 1))
    if target is aten.addmm.default:
        given = arguments_of(node)
        if given["beta"] != 1 or given["alpha"] != 1:
            return None
        return _affine(node, given["mat1"], given["mat2"], given["self"], (1, 1))
    return None


def _convolution(node: Node) -> Affine | None:
    given = arguments_of(node)
    is_transposed = node.target in _TRANSPOSED or given.get("transposed") is True
    groups = given["groups"]
    if not isinstance(groups, int):
        return None
    found = _affine(node, given["input"], given["weight"], given["bias"], (1, 1 if is_transposed else 0))
    if found is None or len(found.input.tensor.shape) != len(found.weight.tensor.shape):
        return None  # without a batch, the channels come first
    if not is_transposed:
        return found
    return Affine(node, found.result, found.input, found.weight, found.bias, 1, 1, groups)


def _affine(node: Node, input: Operand, weight: Operand, bias: Operand, dims: tuple[int, int]) -> Affine | None:
    """dims: of the result and of the weight, which count output channels; that of the result from either end."""
    (result,) = node.outputs
    if not (isinstance(input, Value) and isinstance(weight, Value) and (bias is None or isinstance(bias, Value))):
        return None
    if result is None or (bias is not None and len(bias.tensor.shape) != 1):
        return None
    if len(weight.tensor.shape) < 2:
        return None
    found = Affine(node, result, input, weight, bias, dims[0] % len(result.tensor.shape), dims[1])
    if bias is not None and bias.tensor.shape[0] != found.channels and not found.is_convolution:
        return None  # one number for all
    return found
