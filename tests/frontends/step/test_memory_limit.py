"""Steps under a limit in bytes: eager's bits, the measured peak below the limit, and an error where that cannot be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import BadOptionValue, DovetailWarning, MemoryLimitTooLow, UnsupportedStep
from dovetail.inspect.memory import measure_peak
from dovetail.ops.facts import writes_of
from dovetail.pipeline.memory_limit import memory_limit

Batch = tuple[Tensor, Tensor]


def _mlp() -> tuple[nn.Module, Batch]:
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))]
    return nn.Sequential(*layers, nn.Linear(32, 10)), (torch.randn(64, 32), torch.arange(64) % 10)


def _transformer() -> tuple[nn.Module, Batch]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
            self.head = nn.Linear(32, 50)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for layer in self.layers:
                h = layer(h)
            return self.head(h).flatten(0, 1)

    x = torch.randint(0, 50, (8, 16))
    return Net(), (x, x.flatten())


def _convolutions() -> tuple[nn.Module, Batch]:
    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]

    net = nn.Sequential(*block(3, 8), *block(8, 8), nn.MaxPool2d(2), *block(8, 16), nn.Flatten(), nn.Linear(1024, 5))
    return net, (torch.randn(8, 3, 16, 16), torch.arange(8) % 5)


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "mlp": _mlp,
    "transformer": _transformer,
    "convolutions": _convolutions,
}


class Training:
    """A model, its optimizer and its step."""

    def __init__(self, name: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.net, self.batch = MODELS[name]()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.step = dovetail.compile_step(self.plain, **options) if options else self.plain

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, calls: int = 3) -> dict[str, Any]:
        """All that a training leaves behind, and the peak of the last call."""
        torch.manual_seed(1)
        losses = [self.step(*self.batch) for _ in range(calls)]
        peak = measure_peak(self.step, *self.batch).peak_bytes
        state = [x for held in self.optimizer.state.values() for x in held.values()]
        left = [*losses, *self.net.state_dict().values(), *state, torch.get_rng_state()]
        return {"left": [x.clone() for x in left], "peak": peak}


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _floor(name: str) -> int:
    """The lowest transient peak that is offered."""
    training = Training(name, memory_limit="transient:1B")
    with pytest.raises(MemoryLimitTooLow) as caught:
        training.step(*training.batch)
    return int(caught.value.facts["floor_bytes"])


@pytest.mark.parametrize("name", MODELS)
def test_limits_are_kept_with_the_bits_of_eager(name: str) -> None:
    eager = Training(name).run()
    free = Training(name, partition="default").run()
    assert _equal(free["left"], eager["left"])
    floor = _floor(name)
    assert floor < free["peak"]
    peaks = []
    for share in (0.0, 0.4, 1.0):
        limit = floor + int(share * (free["peak"] - floor))
        training = Training(name, memory_limit=f"transient:{limit}B", keep_grads=True)
        found = training.run()
        assert _equal(found["left"], eager["left"])
        assert found["peak"] <= limit
        assert training.step.explain().peak_bytes == found["peak"]  # type: ignore[union-attr]
        peaks.append(found["peak"])
    assert peaks == sorted(peaks)


def test_a_batch_norm_runs_again_without_its_running_statistics() -> None:
    training = Training("convolutions", memory_limit=f"transient:{_floor('convolutions')}B")
    assert _equal(training.run()["left"], Training("convolutions").run()["left"])
    program = training.step.program  # type: ignore[union-attr]
    again = [node for node in program.nodes if node.recomputed and "batch_norm" in str(node.target)]
    norms = [node for node in program.nodes if not node.recomputed and str(node.target).endswith("native_batch_norm")]
    assert len(norms) == 3
    assert again
    assert not any(writes_of(node) for node in again)
    values = {norm: {value.name for value in norm.operands()} for norm in norms}
    statistics = {name for names in values.values() for name in names if "running" in name}
    assert len(statistics) == 6
    assert statistics.isdisjoint(value.name for node in again for value in node.operands())


@pytest.mark.parametrize("name", MODELS)
def test_without_a_limit_memory_is_never_more_than_eagers(name: str) -> None:
    eager = Training(name).run()
    training = Training(name, partition="auto")
    found = training.run()
    assert _equal(found["left"], eager["left"])
    assert found["peak"] <= eager["peak"]


def test_a_limit_counts_state_unless_it_says_otherwise() -> None:
    training = Training("mlp", memory_limit="1GiB")
    training.run()
    state = training.step.explain().state_bytes  # type: ignore[union-attr]
    held = [x for held in training.optimizer.state.values() for x in held.values()]
    tensors = [*training.net.state_dict().values(), *held, *training.batch]
    assert state == sum(x.untyped_storage().nbytes() for x in tensors)
    floor = _floor("mlp")
    Training("mlp", memory_limit=floor + state).run()
    too_low = Training("mlp", memory_limit=floor + state - 1)
    with pytest.raises(MemoryLimitTooLow) as caught:
        too_low.step(*too_low.batch)
    assert caught.value.facts["floor_bytes"] == floor + state
    assert f"raise it to memory_limit={floor + state}" in str(caught.value)


@pytest.mark.parametrize("on_unsupported", ["raise", "eager"])
def test_what_does_not_fit_is_refused_before_anything_runs(on_unsupported: str) -> None:
    training = Training("transformer", memory_limit="1KiB", on_unsupported=on_unsupported)
    before = copy.deepcopy(training.net.state_dict()), torch.get_rng_state()
    with pytest.raises(MemoryLimitTooLow, match=r"does not fit in 1\.00 KiB") as caught:
        training.step(*training.batch)
    assert "on_unsupported" not in str(caught.value)  # eager mode would not fit either
    assert not training.optimizer.state
    assert all(p.grad is None for p in training.net.parameters())
    assert _equal(list(training.net.state_dict().values()), list(before[0].values()))
    assert torch.equal(torch.get_rng_state(), before[1])


def test_bad_limits_are_refused_at_once() -> None:
    with pytest.raises(BadOptionValue, match="option 'memory_limit' cannot be '6 gigs'"):
        dovetail.compile_step(lambda: None, memory_limit="6 gigs")
    for huge in ("9" * 20 + "B", "9" * 400 + "GiB"):
        assert memory_limit(huge).bytes % 1024 == (int("9" * 20) % 1024 if huge.endswith("9B") else 0)
    with pytest.raises(BadOptionValue, match="give auto or default"):
        dovetail.compile_step(lambda: None, partition="min_cut")


def test_sizes_that_are_not_known_before() -> None:
    with pytest.raises(BadOptionValue, match="one program is for all sizes"):
        dovetail.compile_step(lambda: None, memory_limit="6GiB", dynamic=True)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @dovetail.compile_step(memory_limit="6GiB")
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x[x[:, 0] > 0]).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with pytest.warns(DovetailWarning, match="was not held to memory_limit='6GiB', because control flow or a shape"):
        step(torch.randn(8, 4))
    with pytest.raises(UnsupportedStep, match="size depends on data") as caught:
        step(torch.randn(8, 4))
    assert "leave memory_limit out" in str(caught.value)


def test_checkpoints_of_the_user_still_run_again() -> None:
    """What the user asks to be computed again is, whatever is dropped besides."""

    def training(limit: str | None) -> Training:
        made = Training("transformer", **({} if limit is None else {"memory_limit": limit}))
        forward = made.net.layers[1].forward  # type: ignore[union-attr, index]
        made.net.layers[1].forward = lambda h: torch.utils.checkpoint.checkpoint(forward, h, use_reentrant=False)  # type: ignore[union-attr, index]
        return made

    eager = training(None).run()
    found = training("transient:400KiB").run()
    assert _equal(found["left"], eager["left"])
    assert found["peak"] <= 400 * 1024
