"""Steps whose values go to a file under a memory limit: eager's bits, the predicted peak, and failures of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import (
    BadOptionValue,
    MemoryLimitTooLow,
    OffloadFailed,
    OffloadFailedLate,
    OffloadUnavailable,
    StepInterrupted,
)
from dovetail.execute import transfers
from dovetail.execute.spill_file import Speed, UnnamedFile, keep_speed
from dovetail.inspect.memory import measure_peak
from tests.rotation import everything, rotated

_FAST = Speed(write_rate=1e14, read_rate=1e14, flop_rate=1e9)
_SLOW = Speed(write_rate=1e3, read_rate=1e3, flop_rate=1e12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder of which it is known that its disk is fast."""
    made = str(tmp_path_factory.mktemp("offload"))
    keep_speed(made, _FAST)
    yield made
    keep_speed(made, None)


class _Mixed(nn.Module):
    """Draws, batch statistics that are overwritten, views, and products."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.norm = norm(96)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.3)) for _ in range(2))
        self.last = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).relu()
        for block in self.blocks:
            left, right = block(h).chunk(2, dim=1)
            h = h + torch.cat([right, left.transpose(0, 1).contiguous().t()], dim=1) * 0.5
        return self.last(h)


_OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "clipped": lambda p: torch.optim.SGD(p, lr=0.1),  # whose only writes wait for the norm of all gradients
}


class Training:
    """A model, its optimizer and its step."""

    def __init__(self, kind: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.net = _Mixed(nn.LayerNorm if kind == "clipped" else nn.BatchNorm1d)
        self.batch = torch.randn(128, 64), torch.arange(128) % 10
        self.optimizer = _OPTIMIZERS[kind](self.net.parameters())
        self.clips = kind == "clipped"
        self.step: Any = dovetail.compile_step(self.plain, **options) if options else self.plain

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        if self.clips:
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()

    def left(self) -> list[Tensor]:
        """All that a call may change."""
        state = [x for held in self.optimizer.state.values() for x in held.values() if isinstance(x, Tensor)]
        return [x.clone() for x in (*self.net.state_dict().values(), *state, torch.get_rng_state())]

    def run(self, calls: int = 3) -> list[Tensor]:
        """What calls return and leave."""
        torch.manual_seed(1)
        return [self.step(*self.batch) for _ in range(calls)] + self.left()


@cache
def _floor(kind: str, folder: str = "") -> int:
    """The lowest peak that is offered. Speeds of folders are known, so that it is always the same."""
    options = {"offload": folder} if folder else {}
    training = Training(kind, memory_limit="transient:1B", keep_grads=False, **options)
    with pytest.raises(MemoryLimitTooLow) as caught:
        training.step(*training.batch)
    return int(caught.value.facts["floor_bytes"])


def _spilling(kind: str, folder: str) -> Training:
    """A training at the lowest limit, which lets values go."""
    limit = _floor(kind, folder)
    return Training(kind, memory_limit=f"transient:{limit}B", keep_grads=False, offload=folder)


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("kind", rotated(list(_OPTIMIZERS), 3))
def test_values_go_to_the_file_and_come_back_with_the_bits_of_eager(kind: str, folder: str) -> None:
    floor, alone = _floor(kind, folder), _floor(kind)
    assert floor < alone
    eager = Training(kind).run()
    for limit in (floor, (floor + alone) // 2)[: 2 if everything() else 1]:
        training = Training(kind, memory_limit=f"transient:{limit}B", keep_grads=False, offload=folder)
        assert _same(training.run(), eager)
        found = measure_peak(training.step, *training.batch).peak_bytes
        explained = training.step.explain()
        assert found == explained.peak_bytes <= limit
        assert explained.offloaded
        assert all(value.reads >= 1 and "test_offload.py" in value.origin for value in explained.offloaded)
        assert "go to the file" in str(explained)
    assert os.listdir(folder) == []


# --- what cannot be done ----------------------------------------------------------------------------------------------


def test_the_option_is_refused_where_there_is_nothing_to_decide(folder: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(BadOptionValue, match="without a limit everything stays in memory"):
        dovetail.compile_step(lambda: None, offload=folder)
    for given in (3, ""):
        with pytest.raises(BadOptionValue, match="it is a folder"):
            dovetail.compile_step(lambda: None, memory_limit="1GiB", offload=given)
    for compiled in (
        lambda: dovetail.compile(model, memory_limit="1GiB", offload=folder),
        lambda: dovetail.freeze(model.eval(), (torch.ones(1, 2),), memory_limit="1GiB", offload=folder),
    ):
        with pytest.raises(BadOptionValue, match=r"(?s)offload.*dovetail\.compile_step"):
            compiled()
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "missing", tmp_path / "file", "a\0b"):
        with pytest.raises(OffloadUnavailable, match="DT-MEMORY-002"):
            dovetail.compile_step(lambda: None, memory_limit="1GiB", offload=wrong)


def test_a_slow_file_is_left_alone_where_making_again_is_faster(tmp_path: Path) -> None:
    keep_speed(str(tmp_path), _SLOW)
    training = Training("adamw", memory_limit=f"transient:{_floor('adamw')}B", keep_grads=False, offload=tmp_path)
    training.step(*training.batch)
    keep_speed(str(tmp_path), None)
    explained = training.step.explain()
    assert explained.offloaded == ()
    assert "nothing goes to the file, as making it again is faster" in str(explained)


class _Failing(UnnamedFile):
    """A file whose disk fails. fails: for the name of a method, from which call on."""

    fails: ClassVar[dict[str, int]] = {}
    calls: ClassVar[dict[str, int]] = {}

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.calls[name] >= self.fails.get(name, 1 << 60):
            raise OSError(28, "No space left on device")

    def write(self, contents: memoryview, at: int) -> None:
        self._count("write")
        super().write(contents, at)

    def read(self, memory: memoryview, at: int) -> None:
        self._count("read")
        super().read(memory, at)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[_Failing]:
    """Files that fail when they are told to."""
    monkeypatch.setattr(_Failing, "fails", {})
    monkeypatch.setattr(_Failing, "calls", {})
    monkeypatch.setattr(transfers.Transfers.__init__, "__defaults__", (_Failing,))
    return _Failing


@pytest.mark.parametrize("action", rotated(["write", "read"], 2))
def test_nothing_has_changed_when_the_disk_fails(action: str, folder: str, failing: type[_Failing]) -> None:
    """With a norm of all gradients, nothing is written before the last value is back."""
    training = _spilling("clipped", folder)
    training.run(1)
    before, made = training.left(), dict(failing.calls)
    for first in (made[action] + 1, 2 * made[action]):
        failing.calls.update(made)
        failing.fails[action] = first
        with pytest.raises(OffloadFailed, match="No space left on device") as caught:
            training.step(*training.batch)
        assert "test_offload.py" in str(caught.value)
        assert _same(training.left(), before)
        assert training.step.stats.eager_calls == 0
    failing.fails.clear()
    twin = Training("clipped")
    twin.run(1)
    assert _same(training.run(2), twin.run(2))


def test_what_cannot_be_written_stays_in_memory_once_state_was_written(folder: str, failing: type[_Failing]) -> None:
    """Statistics of batches are overwritten in forward, and gradients are made after that."""
    training, twin = _spilling("adamw", folder), Training("adamw")
    training.run(1)
    twin.run(1)
    failing.fails["write"] = failing.calls["write"] * 2
    with pytest.warns(OffloadFailedLate, match="stayed in memory"):
        found = training.run(1)
    assert _same(found, twin.run(1))
    failing.fails.clear()
    failing.fails["read"] = failing.calls["read"] + 5
    with pytest.raises(StepInterrupted):
        training.run(1)


def test_a_full_disk_is_named_before_anything_runs(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = _spilling("adamw", folder)
    before = training.left()

    def full(number: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OffloadUnavailable, match="No space left on device"):
            training.step(*training.batch)
    assert _same(training.left(), before)
    assert not training.optimizer.state
    assert _same(training.run(), Training("adamw").run())


def test_files_have_no_name_and_are_private(folder: str) -> None:
    file = UnnamedFile(folder, 100)
    found = os.fstat(file._number)
    assert (found.st_nlink, found.st_mode & 0o777, found.st_size) == (0, 0o600, 100)
    assert os.listdir(folder) == []
    file.close()


def test_an_estimate_counts_what_goes_to_the_file(folder: str) -> None:
    training = _spilling("adamw", folder)
    found = dovetail.estimate(training.step, *training.batch)
    limit = int(training.step.options.memory_limit.split(":")[1][:-1])
    assert found.transient_bytes == limit
    assert found.floor_transient_bytes <= limit
    assert any(plan.written_bytes for plan in found.plans())
    assert os.listdir(folder) == []
