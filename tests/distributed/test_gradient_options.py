"""Options of `DistributedDataParallel` that decide where gradients lie, and which there are."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dovetail
from dovetail.errors import UnsupportedDistributed
from tests.distributed.ranks import Ranks, of_ranks
from tests.distributed.steps import Trained, compare, optimizer_of, same, state_of
from tests.rotation import rotated


class _Branches(nn.Module):
    """Two heads on one trunk: a call uses one, both, or a part of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(2, 3, (2, 1)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(3)
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, way: str) -> Any:
        made = self.norm(self.trunk(x)).tanh().mean((2, 3))
        if way == "left":
            return {"left": self.left(made)}
        return {"left": self.left(made), "right": self.right(made)}


def _made(kind: str, **options: Any) -> Trained:
    torch.manual_seed(3)
    model = DistributedDataParallel(_Branches(), bucket_cap_mb=0.00005, **options)
    optimizer = optimizer_of("adamw", model)

    def once(x: torch.Tensor, way: str) -> torch.Tensor:
        outs = model(x, way)
        if way == "ignored":
            del outs["right"]
        loss = sum(out.square().mean() for out in outs.values())
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return loss.detach()

    def step(x: torch.Tensor, way: str) -> torch.Tensor:
        if kind == "clears":
            optimizer.zero_grad()
        elif kind == "zeros":
            optimizer.zero_grad(set_to_none=False)
        loss = once(x, way)
        if kind == "twice":
            loss = loss + once(x * 2, way)
        if kind == "within":
            optimizer.zero_grad()
            with model.no_sync():
                once(x, "both")
            loss = loss + once(x * 2, way)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return Trained(step, model, optimizer)


def _batches(rank: int, ways: list[str]) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(3, 2, 2, 2, generator=generator), way) for way in ways]


_VIEWS, _FINDS = {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}
_CASES: dict[str, tuple[str, dict[str, bool], list[list[str]], int]] = {
    # what the step does with gradients, options, the way of each rank's calls, calls in eager mode
    "views": ("clears", _VIEWS, [["both"]], 2),
    "views, set to zero": ("zeros", _VIEWS, [["both"]], 2),
    "views, added up": ("adds", _VIEWS, [["both"]], 2),
    "views, twice": ("twice", _VIEWS, [["both"]], 1),
    "views, some calls apart": ("within", _VIEWS, [["both"]], 1),
    "views, static": ("clears", _VIEWS | {"static_graph": True}, [["both"]], 3),
    "all are used": ("clears", _FINDS, [["both"]], 0),
    "some are used": ("clears", _FINDS, [["left"]], 0),
    "now these, now those": ("clears", _FINDS, [["left", "both", "ignored"]], 0),
    "some have old gradients": ("zeros", _FINDS, [["both", "left", "ignored"]], 0),
    "gradients are added up": ("adds", _FINDS, [["left", "both", "left"]], 0),
    "calls apart use more": ("within", _FINDS, [["left"]], 0),
    "ranks use other ones": ("clears", _FINDS, [["left", "both"], ["both", "left"]], 3),
    "views of some": ("clears", _VIEWS | _FINDS, [["left", "both", "ignored"]], 0),
    "views of some, added up": ("adds", _VIEWS | _FINDS, [["both", "left", "ignored"]], 0),
}


def _agrees(rank: int, names: list[str]) -> dict[str, int]:
    warnings.simplefilter("ignore")
    found = {}
    for name in names:
        kind, options, ways, _ = _CASES[name]
        of_rank = ways[rank % len(ways)]
        batches = _batches(rank, [of_rank[number % len(of_rank)] for number in range(6)])
        made: list[Trained] = []

        def make(kind: str = kind, options: Any = options, made: list[Trained] = made) -> Trained:
            made.append(_made(kind, **options))
            return made[-1]

        try:
            found[name] = compare(make, batches, seed=rank).eager_calls
            assert _shared(made[0].model) == _shared(made[1].model), "gradients share memory as in eager mode"
        except Exception as error:
            error.add_note(name)
            raise
    return found


def _shared(model: nn.Module) -> list[int]:
    """For each gradient, the first one in the same memory."""
    places = [p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None]
    return list(map(places.index, places))


@pytest.mark.parametrize("name", rotated(list(_CASES), 8))
def test_two_ranks_train_as_in_eager_mode(two_ranks: Ranks, name: str) -> None:
    assert two_ranks(_agrees, [name]) == [{name: _CASES[name][-1]}] * 2


_OF_FOUR = ["views", "now these, now those", "ranks use other ones", "views of some, added up"]


@pytest.mark.parametrize("name", rotated(_OF_FOUR, 4))
def test_four_ranks_train_as_in_eager_mode(four_ranks: Ranks, name: str) -> None:
    """Here the sum depends on which gradients share a bucket."""
    assert four_ranks(_agrees, [name]) == [{name: _CASES[name][-1]}] * 4


def _joins(rank: int, falls_back: bool) -> str:
    """Ranks have batches of their own number."""
    warnings.simplefilter("ignore")
    how = "eager" if falls_back else "raise"
    trained, states = [_made("clears"), _made("clears")], []
    for number, made in enumerate(trained):
        step: Any = dovetail.compile_step(made.step, on_unsupported=how) if number else made.step
        model: Any = made.model
        try:
            with model.join():
                for batch in _batches(rank, ["both"] * (3 + 2 * rank)):
                    step(*batch)
        except UnsupportedDistributed as error:
            return str(error)
        states.append(state_of(made))
    return "" if same(*states) else "they differ"


def test_uneven_batches_run_in_eager_mode(two_ranks: Ranks) -> None:
    assert two_ranks(_joins, True) == ["", ""]


def test_join_is_refused_by_name() -> None:
    with of_ranks(2) as ranks:  # one that raises in `join()` leaves a group that is of no use any more
        for text in ranks(_joins, False, seconds=30):
            assert "a DistributedDataParallel module with join()" in text
