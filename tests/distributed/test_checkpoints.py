"""`torch.distributed.checkpoint` saves and loads what compiled steps train, on as many ranks as are there then."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dovetail
from tests.distributed.ranks import Ranks, of_ranks
from tests.distributed.steps import Trained, same, state_of
from tests.rotation import rotated

_SIZES = (2, 3, 1)  # ranks, one after the other
_CALLS = 3


def _made(door: str) -> Trained:
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Dropout(0.1), nn.Linear(5, 2))
    if door == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    return Trained(step, model, optimizer)


def _save(made: Trained, folder: Path) -> None:
    model, optimizer = get_state_dict(made.model, made.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)


def _load(made: Trained, folder: Path) -> None:
    model, optimizer = get_state_dict(made.model, made.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
    set_state_dict(made.model, made.optimizer, model_state_dict=model, optim_state_dict=optimizer)


def _calls(step: Any, made: Trained, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return [(step(torch.randn(3, 4, generator=generator)), state_of(made)) for _ in range(_CALLS)]


def _train(rank: int, folder: Path, door: str, compiles: bool) -> tuple[list[Any], list[int]]:
    """What each phase has found, on as many ranks as it has; how many calls of it ran in eager mode."""
    found, eager_calls = [], []
    for phase, size in enumerate(_SIZES):
        if rank >= size:
            continue
        dist.destroy_process_group()
        store = f"file://{folder}/store-{phase}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
        made = _made(door)
        step: Any = dovetail.compile_step(made.step) if compiles else made.step
        if phase:
            _load(made, folder / str(phase - 1))
        found.append(_calls(step, made, 10 * phase + rank))
        _save(made, folder / str(phase))
        before = step.stats if compiles else None
        found.append(_calls(step, made, 10 * phase + rank + 3))
        _load(made, folder / str(phase))  # while it is trained: the same again
        found.append(_calls(step, made, 10 * phase + rank + 3))
        assert same(*found[-2:]), "it goes on from where it was saved"
        if before is not None:
            eager_calls += [before.eager_calls, step.stats.eager_calls - before.eager_calls]
            assert step.stats.captures == before.captures, "the program goes on"
    return found, eager_calls


def _agrees(rank: int, folder: str, door: str) -> list[int]:
    warnings.simplefilter("ignore")
    eager, _ = _train(rank, Path(folder) / "eager", door, False)
    compiled, eager_calls = _train(rank, Path(folder) / "compiled", door, True)
    assert same(eager, compiled)
    return eager_calls


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    with of_ranks(3) as ranks:
        yield ranks


@pytest.mark.parametrize("door", rotated(["ddp", "fsdp"], 2))
def test_checkpoints_go_on_with_other_ranks(three_ranks: Ranks, tmp_path: Path, door: str) -> None:
    for name in ("eager", "compiled"):
        (tmp_path / name).mkdir()
    found = three_ranks(_agrees, str(tmp_path), door)
    assert [eager_calls[1::2] for eager_calls in found] == [[0, 0, 0], [0, 0], [0]], found
