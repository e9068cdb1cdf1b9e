"""The benchmark of native code: every way is timed, and memory is no more than without it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.native import WAYS, measure

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("workload", ["mlp 4x64, batch 32", "AdamW, 10 tensors"])
def test_each_way_is_measured(workload: str) -> None:
    former = torch.get_num_threads()
    try:
        cost = measure(workload, 2)
    finally:
        torch.set_num_threads(former)
    for found in (cost.call_us, cost.first_s, cost.peak_bytes):
        assert list(found) == list(WAYS)
    assert all(us > 0 for us in cost.call_us.values())
    assert len(cost.ratios) == 3
    assert cost.peak_bytes["native"] <= cost.peak_bytes["aten"] <= cost.peak_bytes["eager"]
