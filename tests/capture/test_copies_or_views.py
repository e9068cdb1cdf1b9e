"""Copies that eager mode does not make where data leave one row: a caller who could tell gets no copy instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dovetail
from dovetail.errors import UnexpectedSize


def _a_copy_of_a_copy(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x[n.item() :].t().contiguous().t().flatten()  # type: ignore[misc]


def _written_behind_it(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    part = x[n.item() :].t().contiguous()  # type: ignore[misc]
    x.mul_(2)
    return part + 1


def _written_behind_a_copy_of_it(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    part = x[n.item() :].t().contiguous().t().contiguous()  # type: ignore[misc]
    x.mul_(2)
    return part + 1


@pytest.mark.parametrize("fn", [_a_copy_of_a_copy, _written_behind_it, _written_behind_a_copy_of_it])
def test_one_row(fn: Callable[..., torch.Tensor]) -> None:
    """Seen by writing to the result, and by what the function writes itself."""
    compiled, x = dovetail.compile(fn), torch.randn(4, 6)
    for first in (0, 1, 2, 3, 4):
        expected_x, actual_x, start = x.clone(), x.clone(), torch.tensor(first)
        expected = fn(expected_x, start).mul_(3)
        if first == 3:
            with pytest.raises(UnexpectedSize):
                compiled(actual_x, start)
            continue
        assert torch.equal(compiled(actual_x, start).mul_(3), expected)
        assert torch.equal(actual_x, expected_x)
