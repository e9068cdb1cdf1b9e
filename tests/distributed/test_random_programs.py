"""Random steps with collectives give what eager mode gives, on two ranks, however late collectives run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dovetail.ops import collectives
from dovetail.torch_compat.collectives import find_group
from tests.distributed.ranks import Ranks
from tests.distributed.steps import Trained, compare, optimizer_of
from tests.rotation import rotated

_AT_ONCE = 5
_BLOCKS = list(range(40))
_ROWS, _WIDTH = 4, 6
_REDUCTIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)


def _summed(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    made = x.detach().clone()
    dist.all_reduce(made, choose.choice(_REDUCTIONS))
    return x * made.tanh()


def _written(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    """A view of what is read later is reduced in place."""
    made = x.detach() * 2
    before = made.sum()
    dist.all_reduce(made[: choose.randint(1, _ROWS)], choose.choice(_REDUCTIONS))
    made.mul_(0.25)
    return x + made + before.sin()


def _started(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    made, other = x.detach().clone(), x.detach().clone()
    works: list[Any] = [
        dist.all_reduce(made, async_op=True),
        dist.broadcast(other, choose.randint(0, 1), async_op=True),
    ]
    between = x.tanh()
    choose.shuffle(works)
    for work in works:
        work.wait()
    return between + made - other


def _gathered(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    parts = [torch.empty(_ROWS, _WIDTH) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return x * torch.stack(parts).mean(0) if choose.random() < 0.5 else x - choose.choice(parts)


def _exchanged(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    made = torch.empty(_ROWS, _WIDTH)
    dist.all_to_all_single(made, x.detach().contiguous())
    return x + made.flip(0)


def _forgotten(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    dist.all_reduce(x.detach() * 3)
    if choose.random() < 0.3:
        dist.barrier()
    return x


def _kept(x: torch.Tensor, choose: random.Random, held: torch.Tensor) -> torch.Tensor:
    """State that nobody else writes becomes a sum of all ranks."""
    held.mul_(0.5).add_(x.detach().mean(0))
    dist.all_reduce(held, dist.ReduceOp.MAX)
    return x + held


def _dropped(x: torch.Tensor, choose: random.Random, _: Any) -> torch.Tensor:
    return nn.functional.dropout(x, 0.2)


_PARTS: tuple[Callable[[torch.Tensor, random.Random, Any], torch.Tensor], ...] = (
    *(_summed, _written, _started, _gathered, _exchanged, _forgotten, _kept, _dropped),
)


def _program(seed: int) -> Trained:
    choose = random.Random(seed)
    parts = [choose.choice(_PARTS) for _ in range(choose.randint(3, 9))]
    seeds = [choose.randrange(1 << 30) for _ in parts]
    reduces, clips = choose.random() < 0.7, choose.random() < 0.3
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(3)))
    held = torch.zeros(_WIDTH)
    model.register_buffer("held", held)
    optimizer = optimizer_of(choose.choice(("adamw", "sgd")), model)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        for number, (part, own) in enumerate(zip(parts, seeds, strict=True)):
            x = part(x, random.Random(own), held)
            if number % 2:
                x = model[number // 2 % 3](x).tanh()
        loss = model(x).square().mean()
        loss.backward()
        if reduces:
            for weight in model.parameters():
                assert weight.grad is not None
                dist.all_reduce(weight.grad)
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return Trained(step, model, optimizer)


class _Late:
    """Work that does not begin before it is waited for: what is touched meanwhile would show."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start

    def wait(self, *_: Any) -> None:
        work = self._start()
        if work is not None:
            work.wait()


def _begin_late(what: str, group: str, start: Callable[[Any], Any]) -> _Late:
    collectives.ask_before(group)
    return _Late(lambda: start(find_group(group)))


def _agree(rank: int, block: int, *, is_late: bool) -> int:
    warnings.simplefilter("ignore")
    with patch.object(collectives, "_begin", _begin_late if is_late else collectives._begin):
        return _eager_calls(rank, block)


def _eager_calls(rank: int, block: int) -> int:
    eager_calls = 0
    for seed in range(block * _AT_ONCE, (block + 1) * _AT_ONCE):
        generator = torch.Generator().manual_seed(1000 * rank + seed)
        batches = [(torch.randn(_ROWS, _WIDTH, generator=generator),) for _ in range(4)]
        try:
            eager_calls += compare(lambda seed=seed: _program(seed), batches, seed=rank).eager_calls  # type: ignore[misc]
        except Exception as error:
            error.add_note(f"program {seed}")
            raise
    return eager_calls


@pytest.mark.parametrize("block", rotated(_BLOCKS, 10))
def test_random_programs_agree_with_eager_mode(two_ranks: Ranks, block: int) -> None:
    assert two_ranks(partial(_agree, is_late=block % 2 == 1), block) == [0, 0]
