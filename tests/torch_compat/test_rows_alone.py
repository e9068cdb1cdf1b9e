"""Kernels that treat each row by itself: what is tried holds on tensors that the trial did not see."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
import torch

from dovetail.torch_compat import rows_alone
from dovetail.torch_compat.rows_alone import block_sizes, self_check, treats_rows_alone

aten = torch.ops.aten


def test_self_check() -> None:
    assert self_check() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 3), (48, 129), (33, 1003), (20, 8192)])
@pytest.mark.parametrize("each", [1, 3, 5, 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_are_the_same(
    shape: tuple[int, int], dtype: torch.dtype, each: int, threads: int, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)
    sizes = block_sizes(shape[0], each)
    ends = list(accumulate(sizes))
    generator = torch.Generator().manual_seed(each)
    x, g = (torch.randn(shape, generator=generator).mul(9).to(dtype) for _ in range(2))
    y = torch.randint(shape[1], shape[:1], generator=generator)
    y[1] = -100
    one, count = torch.ones((), dtype=dtype), torch.tensor(float(shape[0]), dtype=dtype)
    runs = {
        "_softmax": lambda rows: aten._softmax(x[rows], -1, False),
        "_log_softmax": lambda rows: aten._log_softmax(x[rows], -1, False),
        "_softmax_backward_data": lambda rows: aten._softmax_backward_data(g[rows], x[rows], -1, dtype),
        "_log_softmax_backward_data": lambda rows: aten._log_softmax_backward_data(g[rows], x[rows], -1, dtype),
        "nll_loss_backward": lambda rows: aten.nll_loss_backward(one, x[rows], y[rows], None, 1, -100, count),
    }
    assert runs.keys() == rows_alone._RUNS.keys()
    for name, run in runs.items():
        if treats_rows_alone(name, dtype):
            parts = torch.cat([run(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)])
            assert torch.equal(parts.view(torch.uint8), run(slice(None)).view(torch.uint8)), name


def test_usual_types_are_known() -> None:
    assert all(treats_rows_alone(name, torch.float32) for name in rows_alone._RUNS)


def test_others_do_not() -> None:
    assert not treats_rows_alone("mm", torch.float32)
    assert not treats_rows_alone("_log_softmax", torch.int64)


def test_what_depends_on_other_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def centred(x: torch.Tensor, rows: slice) -> torch.Tensor:
        return x[rows] - x[rows].nan_to_num().mean()

    assert not rows_alone._same(centred, rows_alone._numbers((5, 7), torch.float32))


def test_a_kernel_that_is_missing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(x: torch.Tensor, rows: slice) -> torch.Tensor:
        raise RuntimeError("not implemented")

    monkeypatch.setitem(rows_alone._RUNS, "_softmax", missing)
    rows_alone._gives_the_same.cache_clear()
    assert not treats_rows_alone("_softmax", torch.float16)
    rows_alone._gives_the_same.cache_clear()
