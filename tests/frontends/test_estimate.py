"""What an estimate says, against what calls take; for tensors without numbers, and limits and batches that fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import BadOptionValue, DovetailError, MemoryLimitTooLow
from dovetail.frontends.step.description import DescribedSteps
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Program
from dovetail.partition.whole.apply import apply_schedule


def _tagger() -> nn.Module:
    return nn.Sequential(nn.Embedding(40, 24), nn.Linear(24, 48), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 40))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(294, 5)
    )


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "tagger": (_tagger, lambda: torch.arange(96).reshape(12, 8) % 40),
    "images": (_images, lambda: torch.randn(12, 3, 16, 16)),
}


class Trained:
    """A model and its optimizer, with a step."""

    net: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, x: Tensor) -> Tensor:
        """One step."""
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Training(Trained):
    """A model of the list."""

    def __init__(self, name: str, device: str = "cpu", optimizer: Callable[..., Any] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        make, batch = _MODELS[name]
        with torch.device(device):
            self.net = make()
        self.x = batch().to(device)
        self.optimizer = optimizer(self.net.parameters(), lr=0.01)


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("keep_grads", [True, False])
def test_steps_take_what_was_estimated(name: str, keep_grads: bool) -> None:
    training = Training(name)
    step = dovetail.compile_step(training.step, keep_grads=keep_grads)
    before = [x.clone() for x in training.net.state_dict().values()], torch.get_rng_state()
    estimate = dovetail.estimate(step, training.x)
    assert all(map(torch.equal, before[0], training.net.state_dict().values()))
    assert torch.equal(before[1], torch.get_rng_state())
    assert all(p.grad is None for p in training.net.parameters())
    for _ in range(3):
        step(training.x)
    assert measure_peak(step, training.x).peak_bytes == estimate.transient_bytes == step.explain().peak_bytes
    assert estimate.peak_bytes - estimate.transient_bytes == step.explain().state_bytes
    assert sum(estimate.breakdown.values()) == estimate.peak_bytes
    assert sum(consumer.bytes for consumer in estimate.consumers) == estimate.peak_bytes
    assert estimate.breakdown["parameters"] == sum(4 * p.numel() for p in training.net.parameters())
    limited = dovetail.compile_step(training.step, keep_grads=keep_grads, memory_limit=estimate.floor_bytes)
    for _ in range(3):
        limited(training.x)
    assert limited.explain().peak_bytes <= estimate.floor_transient_bytes


def _fills_with_zeros(training: Training) -> Callable[[Tensor], None]:
    def step(x: Tensor) -> None:
        training.optimizer.zero_grad(set_to_none=False)
        training.net(x).square().mean().backward()
        training.optimizer.step()

    return step


def _adds_up(training: Training) -> Callable[[Tensor], None]:
    return lambda x: training.net(x).square().mean().backward()


@pytest.mark.parametrize("make", [_fills_with_zeros, _adds_up])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_gradients_that_each_call_leaves_to_the_next_are_there(make: Any, optimizer: Any) -> None:
    training = Training("images", "cpu", optimizer)
    step = dovetail.compile_step(make(training), executors=("aten",))
    found = dovetail.estimate(step, training.x)
    assert all(p.grad is None for p in training.net.parameters())
    meta = Training("images", "meta", optimizer)
    assert dovetail.estimate(make(meta), meta.x).breakdown == found.breakdown
    with torch._subclasses.FakeTensorMode():
        fake = Training("images", "cpu", optimizer)
    assert dovetail.estimate(make(fake), fake.x).breakdown == found.breakdown
    for _ in range(2):
        step(training.x)
    said = step.explain()
    assert measure_peak(step, training.x).peak_bytes == said.peak_bytes == found.transient_bytes
    assert found.peak_bytes == said.state_bytes + said.peak_bytes
    limited = dovetail.compile_step(make(Training("images", "cpu", optimizer)), memory_limit=found.floor_bytes)
    for _ in range(2):
        limited(training.x)


class _Momentum(torch.optim.Optimizer):
    """Keeps moments beside a number of the data, on one memory, or as parameters."""

    def __init__(self, weights: Any, kind: str) -> None:
        super().__init__(weights, {"lr": 0.01})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = [p for group in self.param_groups for p in group["params"]]
        if "m" not in self.state[weights[0]]:
            parts = torch.zeros(sum(p.numel() for p in weights)).split([p.numel() for p in weights])
            for p, part in zip(weights, parts, strict=True):
                moment = part.view_as(p) if self.kind == "on one memory" else torch.zeros_like(p)
                self.state[p]["m"] = nn.Parameter(moment, False) if self.kind == "parameter" else moment
        for p in weights:
            if self.kind == "number":
                self.state[p]["size"] = p.norm().item()
            p.sub_(self.state[p]["m"].mul_(0.9).add_(p.grad), alpha=0.01)


@pytest.mark.parametrize("kind", ["number", "on one memory", "parameter"])
def test_moments_of_any_kind_count_before_they_are_there(kind: str) -> None:
    def made() -> Training:
        return Training("images", optimizer=lambda weights, lr: _Momentum(weights, kind))

    training, limited = made(), made()
    step = dovetail.compile_step(training.step, keep_grads=False)
    found = dovetail.estimate(step, training.x)
    assert not training.optimizer.state
    for _ in range(3):
        step(training.x)
    said = step.explain()
    assert found.peak_bytes == said.state_bytes + said.peak_bytes
    weights = sum(4 * p.numel() for p in training.net.parameters())
    assert found.breakdown["parameters"] + found.breakdown["optimizer state"] == 2 * weights
    step = dovetail.compile_step(limited.step, keep_grads=False, memory_limit=found.floor_bytes - 1)
    with pytest.raises(MemoryLimitTooLow):
        step(limited.x)
    assert not limited.optimizer.state
    step = dovetail.compile_step(limited.step, keep_grads=False, memory_limit=found.floor_bytes)
    for _ in range(3):
        step(limited.x)
    assert all(map(torch.equal, limited.net.parameters(), training.net.parameters()))


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("grad", [True, False])
def test_models_take_what_was_estimated(name: str, grad: bool) -> None:
    training = Training(name)
    with torch.set_grad_enabled(grad):
        estimate = dovetail.estimate(training.net, training.x)
        compiled = dovetail.compile(training.net)
        assert dovetail.estimate(compiled, training.x).breakdown == estimate.breakdown
        compiled(training.x)
        assert measure_peak(compiled, training.x).peak_bytes == estimate.transient_bytes
    assert bool(estimate.breakdown["residuals"]) == grad
    assert sum(estimate.breakdown.values()) == estimate.peak_bytes


@pytest.mark.parametrize("name", _MODELS)
def test_tensors_without_numbers_count_as_real_ones(name: str) -> None:
    real, meta = Training(name), Training(name, "meta")
    with torch._subclasses.FakeTensorMode():
        fake = Training(name)
    kinds = [type(p) for p in fake.net.parameters()]
    wanted = dovetail.estimate(real.step, real.x)
    forward = dovetail.estimate(real.net, real.x)
    for training in (meta, fake):
        found = dovetail.estimate(training.step, training.x)
        assert (found.peak_bytes, found.floor_bytes) == (wanted.peak_bytes, wanted.floor_bytes)
        assert found.breakdown == wanted.breakdown
        assert dovetail.estimate(training.net, training.x).breakdown == forward.breakdown
    assert all(p.device.type == "meta" and p.requires_grad and p.grad is None for p in meta.net.parameters())
    assert [type(p) for p in fake.net.parameters()] == kinds


def test_state_that_was_made_on_meta() -> None:
    def trained(device: str) -> Training:
        training = Training("tagger", device, torch.optim.Adam)
        for p in training.net.parameters():
            p.grad = torch.zeros_like(p)
        training.optimizer.step()
        training.optimizer.zero_grad()
        return training

    real, meta = trained("cpu"), trained("meta")
    found = dovetail.estimate(meta.step, meta.x)
    assert found.breakdown == dovetail.estimate(real.step, real.x).breakdown
    parameters = sum(p.numel() for p in real.net.parameters())
    assert found.breakdown["optimizer state"] >= 8 * parameters
    for device in ("cpu", "meta"):  # and state that nothing has made yet
        fresh = Training("tagger", device, torch.optim.Adam)
        assert dovetail.estimate(fresh.step, fresh.x).breakdown == found.breakdown
        assert not fresh.optimizer.state


def test_models_larger_than_any_machine() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(1 << 20, 1 << 20, bias=False), nn.GELU())
        x = torch.zeros(1 << 10, 1 << 20)
    with torch.no_grad():
        estimate = dovetail.estimate(net, x)
    assert estimate.breakdown["parameters"] == 4 << 40
    assert estimate.breakdown["arguments"] == 4 << 30
    assert not estimate.fits("4TiB")
    assert estimate.fits("transient:9GiB")
    assert not estimate.unknown_needs


def test_batches_that_fit() -> None:
    training = Training("images")
    estimate = dovetail.estimate(training.step, training.x)
    for limit in (estimate.floor_bytes, estimate.floor_bytes - 1, "1MiB"):
        batch = estimate.max_batch(limit)
        for size, fits in ((batch, True), (batch + 1, False)):
            again = dovetail.estimate(training.step, torch.randn(size, 3, 16, 16))
            assert again.fits(limit) is fits
    assert estimate.max_batch(estimate.floor_bytes) >= 12 > estimate.max_batch(estimate.floor_bytes - 1)
    assert estimate.max_batch("transient:1B") == 0


def test_which_size_is_the_batch() -> None:
    def scored(x: Tensor, weights: Tensor) -> Tensor:
        return F.softmax(x * weights, -1)

    compiled = dovetail.compile(scored)
    estimate = dovetail.estimate(compiled, torch.randn(6, 9), torch.randn(9))
    with pytest.raises(BadOptionValue, match="6 in argument 0, 9 in argument 1"):
        estimate.max_batch("1MiB")
    batch = estimate.max_batch("1MiB", batch_dim={0: 0})
    assert dovetail.estimate(compiled, torch.randn(batch, 9), torch.randn(9)).fits("1MiB")
    assert estimate.max_batch("1MiB", batch_dim={"x": 0}) == batch  # an argument by its name, however it was given
    named = dovetail.estimate(compiled, torch.randn(6, 9), weights=torch.randn(9))
    assert named.max_batch("1MiB", batch_dim={"x": 0}) == batch
    with pytest.raises(BadOptionValue, match=r"option 'limit' cannot be '9TiB'[\s\S]*fits as well"):
        dovetail.estimate(torch.relu, torch.randn(6)).max_batch("9TiB")
    for wrong in ({"z": 0}, {0: 5}, "first", 3):
        with pytest.raises(BadOptionValue, match="batch_dim"):
            estimate.max_batch("1MiB", batch_dim=wrong)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    for wrong in (3, "step", nn.Linear):
        with pytest.raises(BadOptionValue, match="step_or_model"):
            dovetail.estimate(wrong)
    frozen = dovetail.freeze(nn.Linear(4, 1), (torch.ones(2, 4),))
    with pytest.raises(BadOptionValue, match=r"dovetail\.explain\(frozen\)\.call"):
        dovetail.estimate(frozen, torch.ones(2, 4))
    assert dovetail.explain(frozen).call.peak_bytes > 0
    training = Training("tagger")
    estimate = dovetail.estimate(training.step, training.x)
    with pytest.raises(BadOptionValue, match="memory_limit"):
        estimate.fits("6 gigs")
    with pytest.raises(BadOptionValue, match="memory_limit"):
        estimate.max_batch("6 gigs")
    net, optimizer = nn.Linear(4, 1), torch.optim.SGD

    def by_data(x: Tensor) -> Tensor:
        made = optimizer(net.parameters(), lr=0.1)
        loss = net(x[x[:, 0] > 0]).sum()
        loss.backward()
        made.step()
        return loss.detach()

    with pytest.raises(dovetail.DovetailError):
        dovetail.estimate(by_data, torch.randn(8, 4))
    assert net.weight.grad is None


def test_sizes_that_depend_on_data() -> None:
    net = nn.Linear(4, 1)

    def step(x: Tensor) -> Tensor:
        loss = net(x[x[:, 0] > 0]).sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(DovetailError, match=r"depends? on (tensor )?data"):
        dovetail.estimate(step, torch.randn(8, 4))
    assert net.weight.grad is None


def test_it_reads_as_a_table() -> None:
    training = Training("images")
    estimate = dovetail.estimate(training.step, training.x)
    text = str(estimate)
    assert f"{estimate.peak_bytes:,} bytes" in text
    assert all(part in text for part in estimate.breakdown)
    assert "test_estimate.py" in text


def test_lower_peaks_are_looked_for_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = 0

    def counted(*args: Any) -> Program:
        nonlocal applied
        applied += 1
        return apply_schedule(*args)

    monkeypatch.setattr("dovetail.pipeline.schedule_search.apply_schedule", counted)
    training = Training("tagger")
    step = dovetail.compile_step(training.step, partition="default")
    estimate = dovetail.estimate(step, training.x)
    assert estimate.fits(estimate.peak_bytes)
    assert not estimate.fits(1)
    assert not applied
    floor = estimate.floor_transient_bytes
    assert applied
    assert floor < estimate.transient_bytes
    for limit in (estimate.transient_bytes - 1, floor, floor - 1):
        assert dovetail.estimate(step, training.x).fits(f"transient:{limit}B") == (limit >= floor)


def test_one_recording_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not enough, and the one that makes the optimizer's state, are gone before the next one begins."""
    living: list[weakref.ref[Any]] = []
    begin = DescribedSteps.capture.recording

    def begun(*args: Any, **kwargs: Any) -> Any:
        assert not [ref for ref in living if ref() is not None]
        recording = begin(*args, **kwargs)
        living.append(weakref.ref(recording))
        return recording

    monkeypatch.setattr(DescribedSteps.capture, "recording", staticmethod(begun))
    net = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    dovetail.estimate(step, torch.randn(4, 8))
    assert len(living) > 1
    assert not optimizer.state
