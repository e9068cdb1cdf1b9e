"""Chains of nodes run on blocks of rows: with eager's bits, in less memory, and only where nobody could tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import MemoryLimitTooLow
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.memory import measure_peak
from dovetail.passes import row_blocks
from tests.rotation import rotated

CLASSES, ROWS = 1200, 96
SCORES = 4 * CLASSES * ROWS
Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _small(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", 1 << 15)


class _Training:
    """A model that is trained on a loss of its scores."""

    def __init__(self, loss: Loss, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.loss = loss
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.step = dovetail.compile_step(self.eager, **{"keep_grads": False, "partition": "default", **options})

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]


def _batches(steps: int, *shape: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(*shape, 8, generator=generator) for _ in range(steps)]
    return [(one, torch.randint(-1, CLASSES, shape, generator=generator)) for one in x]


def _report(step: CompiledStep) -> str:
    return dict(step.compiled.reports)["row_blocks"]


def _compare(loss: Loss, *shape: int, **options: Any) -> _Training:
    """Each loss and each weight has eager's bits, and the peak is what the step says."""
    mine, reference = _Training(loss, **options), _Training(loss)
    batches = _batches(3, *shape)
    for batch in batches:
        assert torch.equal(mine.step(*batch), reference.eager(*batch))
    assert all(map(torch.equal, mine.state(), reference.state()))
    peak = mine.step.explain().peak_bytes
    mine.optimizer.zero_grad()
    assert measure_peak(mine.step, *batches[0]).peak_bytes == peak
    return mine


def _flat(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return scores.reshape(-1, CLASSES), labels.reshape(-1)


def _entropy(**options: Any) -> Loss:
    return lambda scores, labels: F.cross_entropy(*_flat(scores, labels), ignore_index=-1, **options)


def _by_hand(scores: Tensor, labels: Tensor) -> Tensor:
    found = scores.log_softmax(-1).gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return -(found * (labels >= 0)).sum() / (labels >= 0).sum()


def _scaled(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(*_flat(scores / 0.7, labels), ignore_index=-1)


def _autocast(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(*_flat(scores.bfloat16().float(), labels), ignore_index=-1)


WEIGHTS = torch.rand(CLASSES, generator=torch.Generator().manual_seed(2))
LOSSES: dict[str, Loss] = {
    "mean": _entropy(),
    "sum": lambda scores, labels: _entropy(reduction="sum")(scores, labels) / 100,
    "none": lambda scores, labels: _entropy(reduction="none")(scores, labels).mean(),
    "weights": _entropy(weight=WEIGHTS),
    "smoothing": _entropy(label_smoothing=0.1),
    "by hand": _by_hand,
    "scaled": _scaled,
    "converted": _autocast,
}


@pytest.mark.parametrize("name", rotated([*LOSSES], of=2))
def test_losses(name: str) -> None:
    """One matrix of scores is enough, and what blocks need."""
    mine = _compare(LOSSES[name], 4, ROWS // 4, verify=2)
    assert "blocks of rows: " in _report(mine.step)
    assert mine.step.explain().peak_bytes < 2 * SCORES


def test_the_gradient_lies_over_the_scores() -> None:
    before = _compare(_entropy(), ROWS, skip=("row_blocks",)).step.explain().peak_bytes
    after = _compare(_entropy(), ROWS).step.explain().peak_bytes
    assert before > 2 * SCORES > after + SCORES // 2


@pytest.mark.parametrize("rows", rotated([33, 50, 97, 130], of=2))
def test_rows_that_do_not_divide(rows: int) -> None:
    assert "blocks of rows: " in _report(_compare(_entropy(), rows, verify=2).step)


def test_two_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        _compare(_entropy(), ROWS)
    finally:
        torch.set_num_threads(threads)


def test_under_limits() -> None:
    lowest = _Training(_entropy(), memory_limit="transient:1B", partition="auto")
    with pytest.raises(MemoryLimitTooLow) as caught:
        lowest.step(*_batches(1, ROWS)[0])
    floor = int(str(caught.value.facts["floor_bytes"]))
    assert floor < 2 * SCORES
    for limit in (floor, floor + SCORES // 4):
        mine = _compare(_entropy(), ROWS, memory_limit=f"transient:{limit}B", partition="auto")
        assert mine.step.explain().peak_bytes <= limit


def test_what_is_read_later_is_kept() -> None:
    """The log-probabilities, that the loss of the next line reads."""

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        found = scores.log_softmax(-1)
        kept.append(found.detach())
        return F.nll_loss(found, labels, ignore_index=-1)

    kept: list[Tensor] = []
    mine, reference = _Training(loss), _Training(loss)
    for batch in _batches(3, ROWS):
        assert torch.equal(mine.step(*batch), reference.eager(*batch))
        assert torch.equal(kept[-2], kept[-1])


def test_small_values_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", SCORES)
    assert _report(_compare(_entropy(), ROWS).step) == "nothing runs on blocks of rows"
