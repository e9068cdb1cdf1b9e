"""Products of many rows run in blocks: as exact as in one piece, smaller, and only where nobody could tell."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.analysis.liveness import simulate_peak
from dovetail.errors import BadOptionValue
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.memory import measure_peak
from dovetail.passes.chunk_rows import ChunkReport
from tests.rotation import seed

VOCABULARY, HIDDEN = 600, 16
Loss = Callable[[Tensor, Tensor], Tensor]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, VOCABULARY)).double()


def _batches(steps: int, *shape: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(*shape, 8, generator=generator, dtype=torch.float64),
            torch.randint(-1, VOCABULARY, shape, generator=generator),
        )
        for _ in range(steps)
    ]


class _Training:
    """A model that is trained on a loss of its scores."""

    def __init__(self, loss: Loss, **options: Any) -> None:
        self.model = _model()
        self.loss = loss
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.step = dovetail.compile_step(self.eager, numerics="fast", **options)

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]


def _report(step: CompiledStep) -> str:
    return dict(step.compiled.reports)["chunk_rows"]


def _assert_close(training: _Training, reference: _Training, losses: list[Tensor], expected: list[Tensor]) -> None:
    """In float64, where sums of some thousand terms differ by some thousand roundings at most."""
    bound = 8 * (VOCABULARY + 4096) * torch.finfo(torch.float64).eps
    for found, wanted in zip([*losses, *training.state()], [*expected, *reference.state()], strict=True):
        scale = max(1.0, float(wanted.abs().max()))
        assert float((found - wanted).abs().max()) <= bound * scale


def _compare(loss: Loss, *shape: int) -> _Training:
    chunked, reference = _Training(loss, verify=2), _Training(loss)
    batches = _batches(3, *shape)
    losses = [chunked.step(*batch) for batch in batches]
    expected = [reference.eager(*batch) for batch in batches]
    _assert_close(chunked, reference, losses, expected)
    return chunked


def _flat(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return scores.view(-1, VOCABULARY), labels.view(-1)


TEACHER = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64).softmax(0)
WEIGHTS = torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def _softcapped(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(*_flat(torch.tanh(scores / 30) * 30, labels), ignore_index=-1)


def _with_z_loss(scores: Tensor, labels: Tensor) -> Tensor:
    z = scores.logsumexp(-1).square().mean()
    return F.cross_entropy(*_flat(scores, labels), ignore_index=-1) + 1e-4 * z


def _by_hand(scores: Tensor, labels: Tensor) -> Tensor:
    found = scores.log_softmax(-1).gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return -(found * (labels >= 0)).sum() / (labels >= 0).sum()


def _shifted(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), ignore_index=-1)


def _focal(scores: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(*_flat(scores, labels), ignore_index=-1, reduction="none")
    return ((1 - torch.exp(-losses)).square() * losses).mean()


def _distilled(scores: Tensor, labels: Tensor) -> Tensor:
    return F.kl_div(scores.log_softmax(-1), TEACHER.expand_as(scores), reduction="batchmean")


def _entropy(**options: Any) -> Loss:
    return lambda scores, labels: F.cross_entropy(*_flat(scores, labels), ignore_index=-1, **options)


LOSSES: dict[str, Loss] = {
    "mean": _entropy(),
    "sum": lambda scores, labels: _entropy(reduction="sum")(scores, labels) / 100,
    "none": lambda scores, labels: _entropy(reduction="none")(scores, labels).mean(),
    "weights": _entropy(weight=WEIGHTS),
    "smoothing": _entropy(label_smoothing=0.1),
    "smoothing and weights": _entropy(label_smoothing=0.1, weight=WEIGHTS),
    "softcap": _softcapped,
    "z-loss": _with_z_loss,
    "by hand": _by_hand,
    "shifted": _shifted,
    "focal": _focal,
    "distilled": _distilled,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    chunked = _compare(LOSSES[name], 4, 64)
    assert " bytes, " in _report(chunked.step)
    scores = 256 * VOCABULARY * 8  # bytes
    assert simulate_peak(chunked.step.program).peak_bytes < scores


def test_the_peak_is_known_before_it_is_measured() -> None:
    chunked = _Training(LOSSES["mean"], keep_grads=False)
    batches = _batches(4, 4, 64)
    for batch in batches[:3]:
        chunked.step(*batch)
    measured = measure_peak(lambda: chunked.step(*batches[3])).peak_bytes
    predicted = chunked.step.explain().peak_bytes
    assert 0.99 * predicted <= measured <= predicted


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, labels: LOSSES["mean"](scores, labels).square(),  # its gradient depends on all rows
        lambda scores, labels: LOSSES["mean"](F.dropout(scores, 0.1), labels),  # it draws
        lambda scores, labels: LOSSES["mean"](scores - scores.mean(), labels),
        lambda scores, labels: LOSSES["mean"](scores.cumsum(0), labels),
    ],
)
def test_what_needs_all_rows_stays_whole(loss: Loss) -> None:
    training = _Training(loss)
    for batch in _batches(3, 4, 64):
        training.step(*batch)
    assert _report(training.step) == str(ChunkReport())


def test_scores_that_are_returned_stay_whole() -> None:
    model, x, y = _model(), *_batches(1, 256)[0]

    @dovetail.compile_step(numerics="fast")
    def step(x: Tensor, y: Tensor) -> Tensor:
        scores = model(x)
        F.cross_entropy(scores, y, ignore_index=-1).backward()
        return scores.detach()

    for _ in range(2):
        scores = step(x, y)
    assert torch.equal(scores, model(x))
    assert _report(step) == str(ChunkReport())


def test_a_class_out_of_range_fails_as_in_eager_before_anything_is_written() -> None:
    training = _Training(LOSSES["mean"])
    x, y = _batches(1, 4, 64)[0]
    for _ in range(2):
        training.step(x, y)
    before = [parameter.clone() for parameter in training.state()]
    y = y.clone()
    y[-1, -1] = VOCABULARY
    with pytest.raises(IndexError, match="Target 600 is out of bounds"):
        training.step(x, y)
    assert all(map(torch.equal, before, training.state()))


def test_rows_without_a_class_give_what_eager_gives() -> None:
    training, reference = _Training(LOSSES["mean"]), _Training(LOSSES["mean"])
    x, y = _batches(1, 4, 64)[0]
    y = torch.full_like(y, -1)
    y[0, 0] = 3
    for _ in range(3):
        found, expected = training.step(x, y), reference.eager(x, y)
    _assert_close(training, reference, [found], [expected])


def test_batches_that_blocks_do_not_divide() -> None:
    _compare(LOSSES["mean"], 1, 251)
    _compare(LOSSES["shifted"], 7, 33)


def test_what_is_in_blocks_is_not_cut_again() -> None:
    """Though each block makes as much more of its rows as the whole did."""
    model, x = nn.Linear(64, 1024), torch.randn(1024, 64)
    y = torch.arange(1024) % 1024

    @dovetail.compile_step(numerics="fast")
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.zero_grad()
        return loss.detach()

    for _ in range(2):
        step(x, y)
    assert _report(step).count("is made in") == 1
    assert "16 blocks of 64 rows" in _report(step)


@pytest.mark.parametrize(("dtype", "casts"), [(torch.float32, True), (torch.bfloat16, False)])
def test_narrow_numbers_are_added_up_in_wide_ones(dtype: torch.dtype, casts: bool) -> None:
    """Eager rounds a sum once, and so does each block: twice eager's error is allowed."""

    def gradient(kind: torch.dtype, numerics: str | None) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(32, 1500).to(kind)

        def step(x: Tensor, y: Tensor) -> Tensor:
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=casts and kind is not torch.float64):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        run = step if numerics is None else dovetail.compile_step(step, numerics=numerics)
        x, y = torch.randn(4096, 32, generator=torch.Generator().manual_seed(1)), torch.arange(4096) % 1500
        for _ in range(2):
            run(x.to(kind), y)
        if numerics is not None:
            assert _report(run) != str(ChunkReport())
        assert model.weight.grad is not None
        return model.weight.grad.double()

    exact = gradient(torch.float64, None)
    eager, found = ((gradient(dtype, numerics) - exact).norm() for numerics in (None, "fast"))
    assert found <= 2 * eager


def test_sums_of_half_numbers_stay_whole() -> None:
    """Their range is too small for a sum where it is large enough for a mean."""
    model = nn.Linear(16, 600).half()

    @dovetail.compile_step(numerics="fast")
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.zero_grad()
        return loss.detach()

    for _ in range(2):
        step(torch.randn(128, 16).half(), torch.arange(128))
    assert _report(step) == str(ChunkReport())


def test_bits_stay_without_the_option() -> None:
    training = _Training(LOSSES["mean"])
    step = dovetail.compile_step(training.eager)
    for batch in _batches(2, 4, 64):
        step(*batch)
    assert "chunk_rows" not in dict(step.compiled.reports)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(BadOptionValue, match="eager or fast"):
        dovetail.compile_step(lambda: None, numerics="quick")
    with pytest.raises(BadOptionValue, match="compile_step"):
        dovetail.freeze(nn.ReLU(), (torch.ones(2),), numerics="fast")


# --- random chains of operators ---------------------------------------------------------------------------------------


def _random_loss(seed: int) -> Loss:
    """A loss by operators that treat rows one by one, and sums."""
    rng = random.Random(seed)
    scale, shift = rng.uniform(0.5, 2), rng.uniform(-1, 1)
    column = torch.linspace(-shift, shift, VOCABULARY, dtype=torch.float64)
    chain: list[Callable[[Tensor], Tensor]] = [
        lambda s: s * scale + column,
        lambda s: torch.tanh(s / scale),
        lambda s: s - s.amax(-1, keepdim=True),
        F.gelu,
        lambda s: s / s.square().mean(-1, keepdim=True).add(1).sqrt(),
        lambda s: torch.where(s > shift, s, s * 0.1),
        lambda s: s.masked_fill(column > 0.9, -3.0),
        lambda s: s.float().double(),
        lambda s: s.softmax(-1) * scale,
        lambda s: s.view(-1, VOCABULARY),
        lambda s: s.view(4, -1, VOCABULARY),
    ]
    chosen = rng.choices(chain, k=rng.randrange(1, 5))
    ends: list[Loss] = [
        lambda s, y: F.cross_entropy(s.reshape(-1, VOCABULARY), y.reshape(-1), ignore_index=-1),
        lambda s, y: s.logsumexp(-1).square().mean(),
        lambda s, y: s.mean(),
        lambda s, y: (s.square().sum(-1) * (y >= 0).reshape(s.shape[:-1])).sum() / 1000,
    ]
    end = rng.choice(ends)

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        for apply in chosen:
            scores = apply(scores)
        return end(scores, labels)

    return loss


@pytest.mark.parametrize("offset", range(12))
def test_random_losses(offset: int) -> None:
    _compare(_random_loss(seed() * 100 + offset), 4, 64)
