"""What a step raises is what eager mode raises, call after call, and the call has done what it does in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail


class Stop(BaseException):
    """Of a user, who wants nobody to catch it by chance."""


def _table(wrap: Callable[[Any], Any]) -> list[Any]:
    weight, table = torch.nn.Parameter(torch.ones(2)), {0: 1.0, 1: 2.0}

    def step(key: torch.Tensor) -> float:
        loss = (weight * table[key.item()]).sum()  # type: ignore[index]
        weight.grad = None
        loss.backward()
        return loss.item()

    compiled, seen = wrap(step), list[Any]()
    for key in (0, 1, 0, 1, 3, 3, 1, 0, 5, 5, 5, 0):
        try:
            seen.append(compiled(torch.tensor(key)))
        except KeyError as error:
            seen.append(error.args)
    return seen


def test_keys_that_are_not_there() -> None:
    assert _table(dovetail.compile_step) == _table(lambda step: step)


@pytest.mark.parametrize("kind", [SystemExit, Stop, ValueError])
def test_a_step_that_ends_a_loop_has_done_its_work(kind: type[BaseException]) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[float], int, int]:
        weight, calls, raised = torch.zeros(2), [0], 0

        def step(x: torch.Tensor) -> torch.Tensor:
            weight.add_(x)
            calls[0] += 1
            if calls[0] % 4 == 0:
                raise kind("done")
            return weight.sum()

        compiled = wrap(step)
        for _ in range(9):
            try:
                compiled(torch.ones(2))
            except kind:
                raised += 1
        return weight.tolist(), calls[0], raised

    assert run(dovetail.compile_step) == run(lambda step: step) == ([9.0, 9.0], 9, 2)


_LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "layer norm": lambda: torch.nn.LayerNorm(4),
    "linear": lambda: torch.nn.Linear(4, 4),
    "convolution": lambda: torch.nn.Conv1d(3, 3, 1),
    "batch norm": lambda: torch.nn.BatchNorm1d(3),
    "group norm": lambda: torch.nn.GroupNorm(1, 3),
    "cell": lambda: torch.nn.GRUCell(4, 4),
}


@pytest.mark.parametrize("layer", _LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_operands_of_a_dtype_that_a_layer_does_not_take(layer: str, dtype: torch.dtype) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(_LAYERS[layer](), torch.nn.LayerNorm(4), torch.nn.Softmax(-1))
        optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), list[Any]()

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x if layer != "cell" else x[0]).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = wrap(step)
        for kind in (torch.float32, torch.float32, dtype, dtype, torch.float32):
            try:
                seen.append(compiled(torch.ones(2, 3, 4, dtype=kind)).item())
            except RuntimeError as error:
                seen.append(str(error))
            seen.append([None if w.grad is None else w.grad.tolist() for w in net.parameters()])
        return seen

    assert run(dovetail.compile_step) == run(lambda step: step)


def test_masks_and_targets() -> None:
    """How many elements a mask takes is for the data to say: a kernel is not asked about zeros in its place."""

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        table, losses = torch.zeros(4, 3), list[Any]()

        def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            table[targets > 0] = x[:2]
            return torch.nn.functional.nll_loss(table + x, targets)

        compiled = wrap(step)
        for dtype in (torch.int64, torch.int64, torch.int32, torch.int64):
            try:
                losses.append(compiled(torch.ones(4, 3), torch.tensor([0, 1, 0, 2], dtype=dtype)).item())
            except RuntimeError as error:
                losses.append(str(error))
            losses.append(table.tolist())
        return losses

    assert run(dovetail.compile_step) == run(lambda step: step)


def test_a_batch_that_does_not_fit_keeps_no_other_from_being_recorded() -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def step(x: torch.Tensor, targets: torch.Tensor) -> float:
        return torch.nn.functional.nll_loss(x * weight, targets).item()

    compiled = dovetail.compile_step(step)
    for rows in (4, 5):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            step(torch.ones(rows, 3), torch.zeros(7, dtype=torch.int64))
        with pytest.raises(expected.type) as found:
            compiled(torch.ones(rows, 3), torch.zeros(7, dtype=torch.int64))
        assert str(found.value) == str(expected.value)
    other = dovetail.compile_step(step)
    for _ in range(3):
        assert other(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)) == -1.0
    assert other.stats.eager_calls == 0
