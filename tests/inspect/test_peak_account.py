"""What the peak is made of adds up to it, to the byte; and what lower limits cost is what the limits themselves do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.page_limits import work_under
from dovetail.pipeline.peak_account import KINDS, RECOMPUTED, SAVED


def _step(**options: object) -> tuple[CompiledStep, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    blocks = [layer for _ in range(3) for layer in (nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32))]
    net = nn.Sequential(*blocks, nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = dovetail.compile_step(train, **options)
    batch = torch.randn(128, 32), torch.arange(128) % 10
    for _ in range(2):
        step(*batch)
    return step, batch


@pytest.mark.parametrize("lowest", [False, True])
def test_rows_add_up_to_the_peak(lowest: bool) -> None:
    free, _ = _step(partition="default")
    peak = free.explain().peak_bytes
    limit = {"memory_limit": f"transient:{int(0.75 * peak)}B"} if lowest else {"partition": "default"}
    step, _ = _step(**limit)
    explained, page = step.explain(), dovetail.explain(step)
    account = explained.memory
    assert page.memory is not None
    assert page.memory.rows == account.rows
    assert account.peak_bytes == explained.peak_bytes
    assert sum(row.bytes for row in account.rows) == explained.peak_bytes
    assert sum(piece.bytes for piece in account.pieces) == explained.peak_bytes
    assert sum(account.sums().values()) == explained.peak_bytes
    assert {row.kind for row in account.rows} <= KINDS.keys()
    saved = [row for row in account.rows if row.kind == SAVED]
    assert any("test_peak_account.py" in row.line or "torch/nn" in row.line for row in saved)
    assert [piece.bytes for piece in account.pieces] == sorted((p.bytes for p in account.pieces), reverse=True)
    again = [row for row in account.rows if row.kind == RECOMPUTED]
    assert lowest or not again
    assert all(0 < row.work < 1 for row in again if row.bytes)
    assert f"saved {account.sums()[SAVED]:,}" in str(explained)


def test_rows_of_a_graph_add_up_to_the_peak_of_a_call() -> None:
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    explained = dovetail.explain(dovetail.compile(net), torch.randn(64, 32))
    assert explained.call is not None
    assert explained.memory is not None
    assert explained.memory.peak_bytes == explained.call.peak_bytes
    assert sum(row.bytes for row in explained.memory.rows) == explained.call.peak_bytes
    assert not explained.memory.curve


def test_what_lower_limits_cost_is_on_the_page(tmp_path: Path) -> None:
    step, _ = _step(partition="default")
    explained = dovetail.explain(step, lower_limits=True)
    assert explained.memory is not None
    curve = explained.memory.curve
    assert curve[-1].peak_bytes == step.explain().peak_bytes
    assert curve[-1].work == 0
    assert [point.peak_bytes for point in curve] == sorted({point.peak_bytes for point in curve})
    assert [point.work for point in curve] == sorted((point.work for point in curve), reverse=True)
    assert work_under(curve, curve[0].peak_bytes) == curve[0].work
    assert work_under(curve, curve[0].peak_bytes - 1) is None
    limited, _ = _step(memory_limit=f"transient:{curve[0].peak_bytes}B")
    assert limited.explain().peak_bytes <= curve[0].peak_bytes
    explained.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '<svg class="curve"' in page
    assert page.count("<circle") == len(curve)
    assert "which is needed as it is" in page
