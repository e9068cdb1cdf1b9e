"""Kernels whose result may lie over an operand: what is tried, and that steps use it with eager's bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.torch_compat import over_operands
from dovetail.torch_compat.over_operands import result_may_lie_over_first, self_check

aten = torch.ops.aten


def test_self_check() -> None:
    assert self_check() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3), (17, 129), (2, 5, 1003), (4, 2048)])
def test_bits_are_the_same(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """On tensors that the trial did not see."""
    torch.manual_seed(0)
    x, g = torch.randn(shape, dtype=dtype) * 9, torch.randn(shape, dtype=dtype)
    for op in (aten._softmax, aten._log_softmax):
        if result_may_lie_over_first(op.__name__.split(".")[-1], dtype):
            place = x.clone()
            assert torch.equal(op.out(place, -1, False, out=place), op(x, -1, False))
    y = aten._log_softmax(x, -1, False)
    if result_may_lie_over_first("_log_softmax_backward_data", dtype):
        place = g.clone()
        expected = aten._log_softmax_backward_data(g, y, -1, dtype)
        assert torch.equal(aten._log_softmax_backward_data.out(place, y, -1, dtype, out=place), expected)


def test_others_may_not() -> None:
    assert not result_may_lie_over_first("mm", torch.float32)
    assert not result_may_lie_over_first("_log_softmax", torch.int64)
    with torch.device("meta"):  # which does not keep it from being tried
        over_operands._gives_the_same.cache_clear()
        assert result_may_lie_over_first("_log_softmax", torch.float32)


def test_nobody_sees_the_trial() -> None:
    seen: list[object] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    over_operands._gives_the_same.cache_clear()
    with Look():
        assert result_may_lie_over_first("_log_softmax", torch.float32)
    assert seen == []


def test_a_kernel_that_takes_other_arguments_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(op: Any, x: Tensor, out: Tensor | None) -> Tensor:
        made: Tensor = op(x, -1, False) if out is None else op(x, -1, False, grad_input=out)
        return made

    over_operands._gives_the_same.cache_clear()
    monkeypatch.setitem(over_operands._RUNS, "_softmax", other)
    assert not result_may_lie_over_first("_softmax", torch.float64)
    over_operands._gives_the_same.cache_clear()


def test_a_kernel_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_off(op: Any, x: Tensor, out: Tensor | None) -> Tensor:
        made = over_operands._normalized(op, x, out)
        return made if out is None else made.add_(1)

    over_operands._gives_the_same.cache_clear()
    monkeypatch.setitem(over_operands._RUNS, "_log_softmax", one_off)
    assert not result_may_lie_over_first("_log_softmax", torch.float64)
    over_operands._gives_the_same.cache_clear()


def test_the_head_of_a_model_needs_two_buffers() -> None:
    """Logits, their logarithms, and two gradients: the first two share memory, and so do the others."""
    torch.manual_seed(0)
    rows, classes = 64, 1000
    net = nn.Linear(8, classes)
    twin = copy.deepcopy(net)
    x, y = torch.randn(rows, 8), torch.randint(0, classes, (rows,))

    def make(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, compiled = make(net), dovetail.compile_step(make(twin), keep_grads=False, partition="default")
    for _ in range(4):
        assert torch.equal(eager(x, y), compiled(x, y))
    assert torch.equal(net.weight, twin.weight)
    assert measure_peak(compiled, x, y).peak_bytes < 2.3 * rows * classes * 4
    assert measure_peak(eager, x, y).peak_bytes > 2.9 * rows * classes * 4
