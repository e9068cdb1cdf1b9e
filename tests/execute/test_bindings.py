"""The cheap call of a node reaches exactly the wanted operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.execute.executors.bindings import cheapest_call
from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ir.text import Names, plain_call
from dovetail.ops import prims
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.dispatch import DispatchMode, Overload

aten = torch.ops.aten
_INDEX = torch.tensor([1, 0])


def _t(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


CHEAP: list[tuple[Any, tuple[Any, ...], str]] = [
    (aten.add.Tensor, (_t(2, 3), _t(3)), "x.add(y)"),
    (aten.mul.Tensor, (_t(2, 3), 2.0), "x.mul(2.0)"),
    (aten.sub.Tensor, (_t(2), _t(2)), "x.sub(y)"),
    (aten.div.Tensor, (_t(2), _t(2)), "x.div(y)"),
    (aten.neg.default, (_t(2),), "x.neg()"),
    (aten.mm.default, (_t(2, 3), _t(3, 2)), "x.mm(y)"),
    (aten.bmm.default, (_t(1, 2, 3), _t(1, 3, 2)), "x.bmm(y)"),
    (aten.addmm.default, (_t(2), _t(3, 4), _t(4, 2)), "x.addmm(y, z)"),
    (aten.t.default, (_t(2, 3),), "x.t()"),
    (aten.transpose.int, (_t(2, 3), 0, 1), "x.transpose(0, 1)"),
    (aten.permute.default, (_t(2, 3), [1, 0]), "x.permute([1, 0])"),
    (aten.view.default, (_t(2, 3), [3, 2]), "x.view([3, 2])"),
    (aten.expand.default, (_t(1, 3), [2, 3]), "x.expand([2, 3])"),
    (aten.unsqueeze.default, (_t(2), 0), "x.unsqueeze(0)"),
    (aten.squeeze.dim, (_t(1, 2), 0), "x.squeeze(0)"),
    (aten.squeeze.dims, (_t(1, 2), [0]), "x.squeeze([0])"),
    (aten.select.int, (_t(2, 3), 0, 1), "x.select(0, 1)"),
    (aten.split.Tensor, (_t(4), 2), "torch_split(x, 2)"),
    (aten.sum.default, (_t(2),), "x.sum()"),
    (aten.sum.dim_IntList, (_t(2, 3), [1], True), "x.sum([1], True)"),
    (aten.mean.dim, (_t(2, 3), [1]), "x.mean([1])"),
    (aten.max.dim, (_t(2, 3), 1), "x.max(1)"),
    (aten.topk.default, (_t(4), 2), "x.topk(2)"),
    (aten.logsumexp.default, (_t(2, 3), [1]), "x.logsumexp([1])"),
    (aten.relu.default, (_t(2),), "x.relu()"),
    (aten.gelu.default, (_t(2),), "nn_gelu(x)"),
    (aten.silu.default, (_t(2),), "nn_silu(x)"),
    (aten._softmax.default, (_t(2, 3), 1, False), "torch._softmax(x, 1, False)"),
    (aten._log_softmax.default, (_t(2, 3), 1, False), "torch._log_softmax(x, 1, False)"),
    (
        aten.native_layer_norm.default,
        (_t(2, 3), [3], None, None, 1e-5),
        "torch.native_layer_norm(x, [3], None, None, 1e-05)",
    ),
    (aten.native_dropout.default, (_t(2), 0.5, True), "torch.native_dropout(x, 0.5, True)"),
    (aten.embedding.default, (_t(4, 2), _INDEX), "torch.embedding(x, y)"),
    (aten.gather.default, (_t(2, 2), 1, _INDEX.view(2, 1)), "x.gather(1, y)"),
    (aten.cat.default, ([_t(2), _t(2)],), "torch.cat([x, y])"),
    (aten.stack.default, ([_t(2), _t(2)],), "torch.stack([x, y])"),
    (aten.where.self, (_t(2) > 0.5, _t(2), _t(2)), "torch.where(x, y, z)"),
    (aten.clone.default, (_t(2),), "x.clone()"),
    (
        aten.convolution.default,
        (_t(1, 1, 4), _t(1, 1, 2), None, [1], [0], [1], False, [0], 1),
        "torch.convolution(x, y, None, [1], [0], [1], False, [0], 1)",
    ),
    (aten.pow.Tensor_Scalar, (_t(2), 2), "x.pow(2)"),
    (aten.clamp.default, (_t(2), 0.1), "x.clamp(0.1)"),
    (aten.eq.Scalar, (_t(2), 1), "x.eq(1)"),
    (aten.select_scatter.default, (_t(2, 3), _t(3), 0, 1), "x.select_scatter(y, 0, 1)"),
    (aten.linalg_vector_norm.default, (_t(2),), "linalg_linalg_vector_norm(x)"),
    (aten._fft_r2c.default, (_t(4), [0], 0, True), "torch._fft_r2c(x, [0], 0, True)"),
    (aten.special_erfcx.default, (_t(2),), "special_special_erfcx(x)"),
    (aten.matmul.default, (_t(2, 2), _t(2, 2)), "x.matmul(y)"),
    (aten.reshape.default, (_t(2, 3), [6]), "x.reshape([6])"),
    (aten.linear.default, (_t(2, 3), _t(2, 3)), "nn_linear(x, y)"),
    (aten.max.other, (_t(2), _t(2)), "x.max(y)"),
    (aten.dropout.default, (_t(2), 0.5, True), "torch.dropout(x, 0.5, True)"),
    (aten.gru_cell.default, (_t(2, 3), _t(2, 4), _t(12, 3), _t(12, 4)), "torch.gru_cell(x, y, z, u)"),
    (
        aten.lstm_cell.default,
        (_t(2, 3), [_t(2, 4), _t(2, 4)], _t(16, 3), _t(16, 4)),
        "torch.lstm_cell(x, [y, z], u, v)",
    ),
]
# The method or function of that name is another overload, or not there.
PLAIN: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.add.Scalar, (_t(2), 1)),
    (aten.mul.Scalar, (_t(2), 3)),
    (aten.index.Tensor, (_t(3, 2), [_INDEX])),
    (aten.slice.Tensor, (_t(4, 3), 0, 1, 3)),
    (aten.tanh_backward.default, (_t(2), _t(2))),
    (aten.std.correction, (_t(4), [0])),
    (aten._unsafe_view.default, (_t(2, 3), [6])),
]


class _Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Overload] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


def _node(target: Any, args: tuple[Any, ...]) -> tuple[Node, dict[str, Tensor]]:
    names = iter("xyzuvw")
    tensors: dict[str, Tensor] = {}

    def operand(item: Any) -> Any:
        if isinstance(item, Tensor):
            name = next(names)
            tensors[name] = item
            return Value(name, TensorMeta(tuple(item.shape), item.stride(), 0, item.dtype, item.device, len(tensors)))
        return [operand(i) for i in item] if isinstance(item, list) else item

    return Node(target, tuple(map(operand, args))), tensors


def _ids(cases: list[Any]) -> Iterator[str]:
    return (str(case[0]) for case in cases)


@pytest.mark.parametrize(("target", "args", "text"), CHEAP, ids=_ids(CHEAP))
def test_a_cheap_call_is_the_operator(target: Overload, args: tuple[Any, ...], text: str) -> None:
    node, tensors = _node(target, args)
    names = Names()
    assert cheapest_call(names, node) == text
    with torch.no_grad(), _Seen() as seen, below_autograd():
        torch.manual_seed(0)
        eval(text, {"torch": torch, **names.globals, **tensors})
    assert seen.operators == [target]


@pytest.mark.parametrize(("target", "args"), PLAIN, ids=_ids(PLAIN))
def test_a_call_that_would_be_another_operator_is_not_used(target: Overload, args: tuple[Any, ...]) -> None:
    node, _ = _node(target, args)
    assert cheapest_call(Names(), node) == plain_call(Names(), node)


def test_the_kind_of_a_number_decides() -> None:
    x = _t(2)
    assert cheapest_call(Names(), _node(aten.pow.Tensor_Scalar, (x, 2))[0]) == "x.pow(2)"
    assert cheapest_call(Names(), _node(aten.pow.Scalar, (2, x))[0]) == "torch.pow(2, x)"
    assert cheapest_call(Names(), _node(aten.pow.Tensor_Tensor, (x, x))[0]) == "x.pow(y)"


def test_arguments_that_a_binding_would_change_keep_it_away() -> None:
    dtype = (("dtype", torch.float64),)
    node, tensors = _node(aten.sum.dim_IntList, (_t(2, 3), [1]))
    node = Node(node.target, node.args, dtype)
    text = cheapest_call(Names(), node)
    with _Seen() as seen:
        result = eval(text, {"torch": torch, **tensors})
    assert seen.operators == [aten.sum.dim_IntList]
    assert result.dtype == torch.float64


def test_primitives_and_other_libraries_are_called_as_they_are() -> None:
    node, _ = _node(prims.COPY_TO_LAYOUT, (_t(2), [2], [1], torch.float32, torch.device("cpu")))
    names = Names()
    assert cheapest_call(names, node) == "copy_to_layout(x, [2], [1], torch.float32, _cpu)"
    assert names.globals["copy_to_layout"] is prims.COPY_TO_LAYOUT
    with torch.library._scoped_library("dovetail_bindings", "FRAGMENT") as library:
        library.define("relu(Tensor x) -> Tensor")
        node, _ = _node(torch.ops.dovetail_bindings.relu.default, (_t(2),))
        assert cheapest_call(Names(), node) == "torch.ops.dovetail_bindings.relu.default(x)"


def test_a_value_that_is_called_like_a_binding() -> None:
    gelu = Value("nn_gelu", TensorMeta((2,), (1,), 0, torch.float32, torch.device("cpu"), 0))
    names = Names(taken=frozenset({"nn_gelu"}))
    assert cheapest_call(names, Node(aten.gelu.default, (gelu,))) == "nn_gelu_2(nn_gelu)"


def test_one_value_twice_does_not_choose_the_call_of_two() -> None:
    kind = TensorMeta((3,), (1,), 0, torch.bool, torch.device("cpu"), 0)
    x, y = Value("x", kind), Value("y", kind)
    z = Value("z", TensorMeta((3,), (1,), 0, torch.int16, torch.device("cpu"), 1))
    for condition, chosen in ((x, x), (x, y)):
        node = Node(aten.where.self, (condition, chosen, z))
        assert cheapest_call(Names(), node) == f"torch.where(x, {chosen.name}, z)"
