"""Products and convolutions by constant weights, with the operators that follow, as `passes.prepack` reads them.

A linear layer is recorded as a product of matrices; around it, an input of more dimensions is flattened and the
result gets its shape back; a bias may be added after that; an activation may follow.

    a = view(x, [s * 5, 8]);  b = mm(a, t);  c = view(b, [s, 5, 16]);  d = add(c, bias);  e = gelu(d)

    a = convolution(x, w, b);  c = add(a, identity);  d = relu(c)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from dovetail.analysis.reads import readers_of
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.sizes import Size
from dovetail.ops.arguments import arguments_of
from dovetail.ops.layouts import is_reshaping_view
from dovetail.passes.convolution_forms import Convolution, convolution_of

aten = torch.ops.aten

_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
_TRANSPOSITIONS = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})


@dataclass(frozen=True, slots=True)
class LinearCall:
    """`activation(x @ matrix + bias)`.

    nodes: of the program that it stands for, from the product to the last one, whose result is `result`. views: those
    of them that only show the product in another shape. weight: what the matrix is the transpose of, if there is one.
    """

    nodes: tuple[Node, ...]
    views: tuple[Node, ...]
    x: Value
    matrix: Value
    weight: Value | None
    bias: Value | None
    activation: str

    @property
    def result(self) -> Value:
        """What is known to the rest of the program."""
        return self.nodes[-1].results()[0]

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes of the result."""
        return self.result.tensor.shape


@dataclass(frozen=True, slots=True)
class Uses:
    """Who makes and who reads each value of a program. users: with repeats; None stands for an output."""

    producers: Mapping[Value, Node]
    users: Mapping[Value, list[Node | None]]

    def sole_user(self, value: Value) -> Node | None:
        """The node that reads the value once, if nobody else reads it."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 else None


def uses_of(program: Program) -> Uses:
    """Who makes and who reads each value of a program."""
    return Uses(program.producers(), readers_of(program))


def linear_call_of(node: Node, uses: Uses, constants: Collection[Value]) -> LinearCall | str | None:
    """The call that begins with this product; else a reason why there is none; None for another operator."""
    if node.target not in _PRODUCTS:
        return None
    named = arguments_of(node)
    has_bias = node.target is aten.addmm.default
    x, matrix = (named["mat1"], named["mat2"]) if has_bias else (named["self"], named["mat2"])
    bias = named["self"] if has_bias else None
    (result,) = node.results()
    assert isinstance(x, Value) and isinstance(matrix, Value), "products are of tensors"
    if matrix not in constants:
        return "WEIGHT-CHANGES: its matrix is not a constant"
    if x in constants:
        return "CONSTANT: it is computed once"
    if {x.tensor.device.type, matrix.tensor.device.type} != {"cpu"}:
        return "DEVICE: it does not run on the CPU"
    if x.tensor.dtype is not torch.float32 or result.tensor.dtype is not torch.float32:
        return f"DTYPE: its result is of {result.tensor.dtype}"
    if has_bias and (named["beta"] != 1 or named["alpha"] != 1):
        return "SCALED: it multiplies its operands by numbers"
    if isinstance(bias, Value) and not _is_bias(bias, result):
        return "BIAS: its bias is not a vector"
    call = LinearCall((node,), (), x, matrix, _transposed(matrix, uses, constants), _value(bias), "none")
    return _with_what_follows(call, uses)


def read_otherwise(calls: Mapping[Node, LinearCall], uses: Uses) -> list[Node]:
    """The keys of calls whose weight others read than their products: in another form it would be held twice."""
    products = {call.nodes[0] for call in calls.values()}
    return [key for key, call in calls.items() if not _is_read_by(call, products, uses)]


def _is_read_by(call: LinearCall, products: Collection[Node], uses: Uses) -> bool:
    """Whether nothing but these products reads a weight, as it is or by whichever transpositions."""
    for transposition in uses.users.get(call.matrix if call.weight is None else call.weight, []):
        if transposition in products:
            continue
        if transposition is None or len(transposition.results()) != 1:
            return False
        matrix = transposition.results()[0]
        if any(user is None or user not in products for user in uses.users.get(matrix, [])):
            return False
    return True


def _with_what_follows(call: LinearCall, uses: Uses) -> LinearCall:
    """The call with a bias and an activation that nobody else can tell from it."""
    found = call
    while True:
        user = uses.sole_user(call.result)
        if user is None or call.activation != "none":
            return found
        call = replace(call, nodes=(*call.nodes, user))
        activation = activation_of(user)
        bias = _added_bias(user, call) if call.bias is None else None
        if is_reshaping_view(user):
            call = replace(call, views=(*call.views, user))
            continue  # worth it only if something follows
        if bias is not None:
            call = replace(call, bias=bias)
        elif activation is not None:
            call = replace(call, activation=activation)
        else:
            return found
        found = call


def _added_bias(node: Node, call: LinearCall) -> Value | None:
    """What a node adds to the result before it, if that is a vector along its last dimension."""
    if node.target is not aten.add.Tensor:
        return None
    named = arguments_of(node)
    before = call.nodes[-2].results()[0]
    others = [operand for operand in (named["self"], named["other"]) if operand is not before]
    (result,) = node.results()
    if named["alpha"] != 1 or len(others) != 1 or result.tensor.layout() != before.tensor.layout():
        return None
    bias = _value(others[0])
    is_wide = before.tensor.shape[-1:] == call.matrix.tensor.shape[1:]
    return bias if bias is not None and is_wide and _is_bias(bias, result) else None


def _is_bias(bias: Value, result: Value) -> bool:
    meta = bias.tensor if bias.is_tensor else None
    return meta is not None and meta.dtype is torch.float32 and meta.shape == result.tensor.shape[-1:]


def _transposed(matrix: Value, uses: Uses, constants: Collection[Value]) -> Value | None:
    """The constant that the matrix is the transpose of."""
    node = uses.producers.get(matrix)
    if node is None or node.target not in _TRANSPOSITIONS:
        return None
    (weight,) = node.operands()
    turned = len(weight.tensor.shape) == 2 and weight.tensor.stride == tuple(reversed(matrix.tensor.stride))
    return weight if turned and weight in constants and weight.tensor.shape == matrix.tensor.shape[::-1] else None


def _value(operand: object) -> Value | None:
    return operand if isinstance(operand, Value) else None


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionCall:
    """`activation(convolution + addend)`. nodes: those that it stands for, from the convolution to the last one."""

    form: Convolution
    nodes: tuple[Node, ...]
    addend: Value | None
    activation: str

    @property
    def result(self) -> Value:
        """What is known to the rest of the program."""
        return self.nodes[-1].results()[0]


def convolution_calls(
    program: Program, uses: Uses, constants: Collection[Value]
) -> tuple[list[ConvolutionCall], list[tuple[str, str]]]:
    """The calls of a program; and names of other convolutions' results, each with a reason.

    Of two convolutions whose sum is taken, the later one takes the other as its addend.
    """
    calls: list[ConvolutionCall] = []
    left: list[tuple[str, str]] = []
    taken: set[Node] = set()
    for node in reversed(program.nodes):
        form = convolution_of(node, constants, {torch.float32})
        if isinstance(form, str):
            left.append((node.results()[0].name, form))
        elif form is not None and form.x in constants:
            left.append((form.result.name, "CONSTANT: it is computed once"))
        elif form is not None:
            call = _with_addend_and_activation(form, uses, taken)
            taken.update(call.nodes)
            calls.append(call)
    return calls[::-1], left[::-1]


def _with_addend_and_activation(form: Convolution, uses: Uses, taken: Collection[Node]) -> ConvolutionCall:
    nodes: tuple[Node, ...] = (form.node,)
    addend, activation = None, "none"
    user = uses.sole_user(form.result)
    if user is not None and user not in taken:
        addend = _addend(user, form.result)
        if addend is not None:
            nodes = (*nodes, user)
            user = uses.sole_user(user.results()[0])
        name = None if user is None or user in taken else activation_of(user)
        if user is not None and name is not None:
            nodes, activation = (*nodes, user), name
    return ConvolutionCall(form, nodes, addend, activation)


def _addend(node: Node, result: Value) -> Value | None:
    """What a node adds to a value, if it is a tensor of the same kind and shape."""
    if node.target is not aten.add.Tensor:
        return None
    named = arguments_of(node)
    others = [operand for operand in (named["self"], named["other"]) if operand is not result]
    if len(others) != 1 or not isinstance(others[0], Value) or not others[0].is_tensor or named["alpha"] != 1:
        return None
    other, own = others[0].tensor, result.tensor
    alike = (other.shape, other.dtype, other.device) == (own.shape, own.dtype, own.device)
    return others[0] if alike else None


_ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.silu.default: "silu",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
    aten.hardswish.default: "hardswish",
    aten.hardsigmoid.default: "hardsigmoid",
}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def activation_of(node: Node) -> str | None:
    """The activation that a node applies to a tensor of floats, as `ops.packed` calls it; None for anything else."""
    if node.target is aten.gelu.default:
        return _GELUS.get(str(arguments_of(node)["approximate"]))
    if node.target is aten.hardtanh.default:
        named = arguments_of(node)
        return "relu6" if (named["min_val"], named["max_val"]) == (0, 6) else None
    return _ACTIVATIONS.get(node.target)  # type: ignore[call-overload, no-any-return]
