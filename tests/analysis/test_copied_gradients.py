"""Which gradients autograd copies: as it does, for leaves and gradients of many layouts, and as the peak shows it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.analysis.copied_gradients import copied_gradients
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Operand, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import Gradient, Residual, Signature, UserInput

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "in order": lambda: torch.ones(2, 3, 4),
    "turned": lambda: torch.ones(4, 3, 2).permute(2, 1, 0),
    "channels last": lambda: torch.ones(2, 4, 3).permute(0, 2, 1),
    "with gaps": lambda: torch.ones(2, 3, 8)[:, :, ::2],
    "expanded": lambda: torch.ones(1).expand(2, 3, 4),
    "of rows": lambda: torch.ones(2, 1, 4).expand(2, 3, 4),
}
ONE_ROW: dict[str, Callable[[], Tensor]] = {
    "one row": lambda: torch.ones(1, 3),
    "one row, turned": lambda: torch.ones(3, 1).t(),
    "one row, expanded": lambda: torch.ones(3).expand(1, 3),
}
PAIRS = [*product(LAYOUTS.values(), repeat=2), *product(ONE_ROW.values(), repeat=2)]


class _Gives(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[Tensor]) -> Tensor:
        ctx.given = given
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.given.pop(), None


def _value(name: str, tensor: Tensor, storage: int) -> Value:
    meta = TensorMeta(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device, storage)
    return Value(name, meta)


def _halves(leaf: Tensor, outputs: tuple[Operand, ...], given: tuple[Value, ...] = ()) -> tuple[Program, Program]:
    inputs = (_value("leaf", leaf, 0),)
    forward = Program("f", Stage.SPLIT, inputs, (), (), Signature((UserInput(0),), ()))
    roles = tuple(Gradient(0) for _ in outputs)
    signature = Signature(tuple(Residual(value.name) for value in given), roles)
    return forward, Program("b", Stage.SPLIT, given, (), outputs, signature)


def test_a_gradient_is_copied_where_autograd_copies_it() -> None:
    for leaf_of, gradient_of in PAIRS:
        leaf, gradient = leaf_of().requires_grad_(), gradient_of()
        place, stride = gradient.data_ptr(), gradient.stride()
        found = copied_gradients(*_halves(leaf, (_value("g", gradient, 1),)), {0})
        given = [gradient]
        del gradient
        _Gives.apply(leaf, given).backward()
        assert leaf.grad is not None
        assert (0 in found) == (leaf.grad.data_ptr() != place), (leaf.stride(), stride)
        assert leaf.grad.stride() == (found[0].stride if 0 in found else stride)


def test_what_others_hold_is_copied_and_gradients_of_no_leaves_are_not() -> None:
    leaf, value = torch.ones(3), _value("g", torch.ones(3), 1)
    assert not copied_gradients(*_halves(leaf, (value,)), {0})
    assert [*copied_gradients(*_halves(leaf, (value, value)), {0})] == [0]
    assert [*copied_gradients(*_halves(leaf, (value,), (value,)), {0})] == [0]
    assert not copied_gradients(*_halves(leaf, (value,), (value,)), ())
    assert not copied_gradients(*_halves(leaf, (None,)), {0})


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "expanded": lambda w, x: w.sum(),
    "turned": lambda w, x: (w.t() + x.t()).square().mean(),
    "two of one": lambda w, x: (w + x).sum(),
    "in order": lambda w, x: (w @ x).square().mean(),
    "turned once": lambda w, x: (w.t() * w + x).tanh().sum(),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=[*FUNCTIONS])
def test_the_peak_has_the_copies(function: Callable[..., Tensor]) -> None:
    leaves = [torch.randn(192, 192, requires_grad=True) for _ in range(2)]

    def call(function: Callable[..., Tensor]) -> list[Tensor | None]:
        for leaf in leaves:
            leaf.grad = None
        function(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    expected = call(function)
    with pytest.raises(dovetail.DovetailError) as refused:
        call(dovetail.compile(function, memory_limit="transient:1B"))
    floor = refused.value.facts["floor_bytes"]
    compiled = dovetail.compile(function, memory_limit=f"transient:{floor}B")
    call(compiled)
    for leaf in leaves:
        leaf.grad = None
    report = measure_peak(lambda: call(compiled))
    assert report.peak_bytes == dovetail.explain(compiled, *leaves).call.peak_bytes <= floor
    for wanted, found in zip(expected, report.result, strict=True):
        assert (wanted is None) == (found is None)
        if wanted is not None and found is not None:
            assert torch.equal(wanted, found)
            assert wanted.stride() == found.stride()
