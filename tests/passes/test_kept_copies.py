"""A copy stays where its part could not be written without it: calls take no more memory than eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.inspect.memory import measure_peak


def _filled(x: Tensor) -> tuple[Tensor, Tensor]:
    first = x.sin()
    second = first.clone()
    second[:-1].fill_(0.5)
    return first, second


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    first = x.sin()
    second = first.clone()
    second[:-1].mul_(x[:-1])
    return first, second


def _filled_and_added_up(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = _filled(x)
    return first, second.sum(0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("executors", ["aten", None])
@pytest.mark.parametrize("program", [_filled, _scaled, _filled_and_added_up])
def test_a_part_of_a_copy_is_written_in_the_copy(program: Callable[[Tensor], object], executors: str | None) -> None:
    x = torch.randn(8, 100)
    compiled = dovetail.compile(program, **({} if executors is None else {"executors": (executors,)}))
    compiled(x)
    expected, found = measure_peak(program, x), measure_peak(compiled, x)
    torch.testing.assert_close(found.result, expected.result, rtol=0, atol=0)
    assert found.peak_bytes <= expected.peak_bytes
