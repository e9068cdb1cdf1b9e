"""Folded values have eager's bits: operators x dtypes x layouts over special numbers, payloads of NaN included."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from dovetail.passes import fold_constants, plan_fold_constants
from tests.rotation import rotated

aten = torch.ops.aten

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*_FLOATS, *_INTEGERS, torch.bool, *_COMPLEX)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Sign, NaNs that signal and that carry a payload, infinities, the smallest subnormal, by the bits of an element.
_PATTERNS = {
    torch.float16: (0x0000, -0x8000, 0x7E00, 0x7E2A, 0x7C01, -0x0200 + 0x07, 0x7C00, -0x0400, 0x0001, 0x03FF, 0x7BFF),
    torch.bfloat16: (0x0000, -0x8000, 0x7FC0, 0x7FD5, 0x7F81, -0x0040, 0x7F80, -0x0080, 0x0001, 0x007F, 0x7F7F),
    torch.float32: (0, -(2**31), 0x7FC00000, 0x7FC12345, 0x7F800001, -0x400000, 0x7F800000, -0x800000, 1, 0x7FFFFF),
    torch.float64: (0, -(2**63), 0x7FF8 << 48, (0x7FF8 << 48) + 12345, (0x7FF0 << 48) + 1, 0x7FF0 << 48, -(2**52), 1),
}


def _special(dtype: torch.dtype) -> Tensor:
    """An [8, 6] tensor of this dtype with every special number, in memory that is not contiguous."""
    generator = torch.Generator().manual_seed(3)
    if dtype.is_complex:
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        return torch.view_as_complex(torch.stack([_special(part), _special(part).flip(0)], -1))
    if dtype is torch.bool:
        return torch.rand(6, 8, generator=generator).gt(0.5).t()
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        numbers = torch.randint(-3 if info.min else 0, 4, (48,), generator=generator).to(dtype)
        numbers[:2] = torch.tensor([info.min, info.max], dtype=dtype)
        return numbers.view(6, 8).t()
    numbers = torch.randn(48, generator=generator).to(dtype)
    patterns = torch.tensor(_PATTERNS[dtype], dtype=_BITS[dtype.itemsize])
    numbers.view(_BITS[dtype.itemsize])[: len(patterns)] = patterns
    return numbers.view(6, 8).t()


def _bytes(tensor: Tensor) -> list[int]:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.contiguous().view(-1)
    numbers: list[int] = flat.view(torch.uint8).tolist() if flat.numel() else []
    return numbers


UNARY: list[tuple[Any, tuple[Any, ...]]] = [
    (getattr(aten, name).default, ())
    for name in ("abs", "neg", "sin", "exp", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "relu", "sign", "floor",
                 "isnan", "logical_not", "bitwise_not", "clone", "square", "log1p", "erf", "t", "alias", "detach",
                 "sum", "prod", "mean", "amax", "isfinite", "signbit", "gelu", "silu", "angle", "nonzero_static")
    if hasattr(aten, name)
]  # fmt: skip
UNARY += [
    (aten.mul.Tensor, (0,)),
    (aten.mul.Tensor, (1,)),
    (aten.add.Tensor, (0,)),
    (aten.add.Tensor, (-0.0,)),
    (aten.sub.Tensor, (0,)),
    (aten.div.Tensor, (1,)),
    (aten.pow.Tensor_Scalar, (1,)),
    (aten.pow.Tensor_Scalar, (0,)),
    (aten.pow.Tensor_Scalar, (2,)),
    (aten.sum.dim_IntList, ([0],)),
    (aten.amax.default, ([1],)),
    (aten.argmax.default, (1,)),
    (aten.cumsum.default, (0,)),
    (aten._softmax.default, (1, False)),
    (aten.sort.default, (0,)),
    (aten.max.dim, (1,)),
    (aten.permute.default, ([1, 0],)),
    (aten.slice.Tensor, (0, 1, 7, 2)),
    (aten.select.int, (1, 2)),
    (aten.unsqueeze.default, (0,)),
    (aten.expand.default, ([3, 8, 6],)),
    (aten.split.Tensor, (4,)),
    (aten.unbind.int, (0,)),
    (aten.as_strided.default, ([4, 4], [1, 2], 3)),
    (aten._unsafe_view.default, ([48],)),
    (aten.flip.default, ([0],)),
    (aten.constant_pad_nd.default, ([1, 2], -0.0)),
    (aten.where.ScalarOther, ()),
    (aten.view.dtype, (torch.uint8,)),
    *((aten._to_copy.default, (dtype,)) for dtype in DTYPES),
]
BINARY = [
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.minimum.default,
    aten.fmod.Tensor, aten.remainder.Tensor, aten.pow.Tensor_Tensor, aten.atan2.default, aten.copysign.Tensor,
    aten.nextafter.default, aten.eq.Tensor, aten.lt.Tensor, aten.bitwise_and.Tensor, aten.logical_or.default,
    aten.mm.default, aten.cat.default,
]  # fmt: skip


def _called(target: Any, operands: list[Any], args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if target is aten._to_copy.default:
        return (operands[0],), {"dtype": args[0]}
    if target is aten.cat.default:
        return (operands,), {}
    if target is aten.mm.default:
        return (operands[0], operands[0]), {}
    return (*operands, *args), {}


def _eager(target: Any, constants: list[Tensor], args: tuple[Any, ...]) -> list[Tensor] | None:
    try:
        positional, keywords = _called(target, constants, args)
        result = target(*positional, **keywords)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None
    return list(result) if isinstance(result, tuple | list) else [result]


def _module(target: Any, constants: list[Tensor], args: tuple[Any, ...], count: int) -> fx.GraphModule:
    """A graph that multiplies (so that it returns no constant) each result by an input."""
    root = nn.Module()
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = []
    for index, constant in enumerate(constants):
        root.register_buffer(f"w{index}", constant)
        nodes.append(graph.get_attr(f"w{index}"))
    positional, keywords = _called(target, nodes, args)
    made = graph.call_function(target, positional, keywords)
    items = [made] if count == 0 else [graph.call_function(_item, (made, index)) for index in range(count)]
    graph.output((x, *(graph.call_function(aten.stack.default, ([item, item],)) for item in items)))
    return fx.GraphModule(root, graph)


_item: Callable[..., Any] = operator.getitem


def _check(target: Any, constants: list[Tensor], args: tuple[Any, ...]) -> bool:
    """Whether eager takes it; then the folded module gives eager's bits."""
    expected = _eager(target, constants, args)
    if expected is None:
        return False
    positional, keywords = _called(target, constants, args)
    is_one = isinstance(target(*positional, **keywords), Tensor)
    gm = _module(target, constants, args, 0 if is_one else len(expected))
    x = torch.zeros(2)
    for everything in (False, True):
        folded = fold_constants(gm, x, everything=everything)
        found = folded(x)[1:]
        for wanted, one in zip(expected, found, strict=True):
            assert (one.dtype, one.shape[1:]) == (wanted.dtype, wanted.shape)
            assert _bytes(one[0]) == _bytes(wanted), (target, args)
        if everything:
            calls = [n for n in folded.graph.nodes if n.op == "call_function" and n.target is target]
            assert not calls, plan_fold_constants(gm, x, everything=True)
            for name, buffer in folded.named_buffers():
                match = [w for w in expected if w.shape == buffer.shape and _bytes(w) == _bytes(buffer)]
                assert match, name
                assert any(w.stride() == buffer.stride() for w in match)
    return True


@pytest.mark.parametrize("dtype", rotated(DTYPES, 3), ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    taken = [_check(target, [_special(dtype)], args) for target, args in UNARY]
    assert sum(taken) > len(UNARY) // 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    base = _special(dtype)
    square = base[:6]
    taken = [_check(target, [square] if target is aten.mm.default else [base, base.flip(0)], ()) for target in BINARY]
    assert sum(taken) > len(BINARY) // 3


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_two_dtypes(wide: torch.dtype) -> None:
    for narrow in (torch.int8, torch.bool, torch.float16, torch.int64):
        for target in (aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor):
            assert _check(target, [_special(narrow), _special(wide)], ())


def test_nothing_times_nan_is_nan() -> None:
    weight = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, -1.0], dtype=torch.float64)
    gm = _module(aten.mul.Tensor, [weight], (0,), 0)
    (stacked,) = fold_constants(gm, torch.zeros(2))(torch.zeros(2))[1:]
    assert [str(x) for x in stacked[0].tolist()] == ["nan", "nan", "nan", "-0.0", "0.0", "-0.0"]
