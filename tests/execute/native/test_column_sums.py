"""Sums over the first dimensions, where results may differ by rounding."""

from __future__ import annotations

import pytest
import torch

import dovetail
from dovetail.execute.native.column_sums import ColumnSumClaim
from dovetail.execute.native.machine import unavailable
from dovetail.ir.program import Node

pytestmark = pytest.mark.skipif(bool(unavailable()), reason="no machine code can be made here")

_EPS = torch.finfo(torch.float32).eps


@pytest.fixture
def made(rows_made: dict[type, set[Node]]) -> set[Node]:
    """The nodes whose rows were made."""
    return rows_made[ColumnSumClaim]


@pytest.mark.parametrize("dims", [(0,), (0, 1), (-3, -2)])
@pytest.mark.parametrize("shape", [(2, 3, 32), (7, 9, 1025), (3, 50, 300), (33, 2, 4100)])
@pytest.mark.parametrize("keepdim", [True, False])
def test_sums(dims: tuple[int, ...], shape: tuple[int, ...], keepdim: bool, made: set[Node]) -> None:
    x = torch.randn(shape)
    x[0, 0, 0], x[1, 1, 1] = torch.inf, torch.nan
    function = lambda x: (x * 3).sum(dims, keepdim=keepdim) * 2  # noqa: E731
    with torch.no_grad():
        found = [dovetail.compile(function, numerics="fast")(x)]
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            found.append(dovetail.compile(function, numerics="fast")(x))
        finally:
            torch.set_num_threads(threads)
        exact, bound = function(x.double()), function(x.abs().double()) * (32 + shape[0] * shape[1] // 32 + 3) * _EPS
    assert made
    assert found[0].shape == exact.shape
    assert torch.equal(found[0].nan_to_num(), found[1].nan_to_num())
    finite = exact.isfinite()
    assert ((found[0] - exact).abs() <= bound)[finite].all()
    assert torch.equal(found[0].isnan(), exact.isnan())
    assert torch.equal(found[0].isinf(), exact.isinf())


@pytest.mark.parametrize("dim", [0, -1])
def test_negative_zeros(dim: int) -> None:
    x = torch.full((40, 64), -0.0)
    with torch.no_grad():
        found = dovetail.compile(lambda x: (x * 0.5).sum(dim), numerics="fast")(x)
    assert torch.equal(found.signbit(), x.sum(dim).signbit())


def test_others_are_left(made: set[Node]) -> None:
    x = torch.randn(8, 6, 40)
    with torch.no_grad():
        for dims in ((1,), (0, 2), (2,)):
            found = dovetail.compile(lambda x, dims=dims: (x * 3).sum(dims), numerics="fast")(x)
            torch.testing.assert_close(found, (x * 3).sum(dims))
        dovetail.compile(lambda x: (x * 3).sum(0))(x)
    assert not made
