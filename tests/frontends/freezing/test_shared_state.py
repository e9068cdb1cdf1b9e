"""Methods that write one state: a program has it once, whatever it goes through."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.torch_compat.profiler import record_allocator_events

NOTHING = torch.zeros(())
METHODS = {"prefill": {"x": {1: "length"}}, "decode": "static", "peek": "static"}


class Cached(nn.Module):
    """A cache that one method fills, one extends and one reads."""

    def __init__(self, length: int = 8, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))

    def prefill(self, x: Tensor) -> Tensor:
        self.keys.zero_()
        self.keys.narrow(1, 0, x.shape[1]).copy_(self.layer(x))
        self.at.fill_(x.shape[1])
        return self.keys.sum(1)

    def decode(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(1, self.at[None], self.layer(x))
        self.at.add_(1)
        return self.keys @ x.mT

    def peek(self, x: Tensor) -> Tensor:
        return self.keys.sum() + x


def _frozen(model: Cached, **options: Any) -> Any:
    width = model.layer.in_features
    calls = {"prefill": ((torch.rand(1, 3, width),), {}), "decode": ((torch.rand(1, 1, width),), {})}
    return dovetail.freeze(model, {**calls, "peek": ((NOTHING,), {})}, dynamic_shapes=METHODS, **options)


@torch.no_grad()
def _continued(model: Any, steps: int = 2) -> list[Tensor]:
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        found += [model.decode(torch.rand(1, 1, 4)), model.peek(NOTHING)]
    return found


@torch.no_grad()
def _begun(model: Any, length: int = 3) -> list[Tensor]:
    torch.manual_seed(length)
    return [model.prefill(torch.rand(1, length, 4)), model.peek(NOTHING)]


def _equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, found, expected))


def test_what_one_method_writes_another_reads(tmp_path: Path) -> None:
    model, eager = Cached(), Cached()
    frozen, beside = _frozen(model), _frozen(model)
    assert frozen.specialized == ()
    assert _equal(_begun(frozen, 5), _begun(eager, 5))
    assert _equal(_continued(frozen), _continued(eager))
    assert not model.keys.any()
    assert not model.at
    assert _equal(_begun(frozen), _begun(eager))

    frozen.save(tmp_path / "half.dovetail")  # in the middle: the state is in the file
    ways = [frozen, copy.deepcopy(frozen), dovetail.load(tmp_path / "half.dovetail")]
    begun = copy.deepcopy(eager)
    for one in ways:
        assert _equal(_continued(one), _continued(copy.deepcopy(begun)))
    assert not beside.state_dict()["at"]
    assert _equal(_begun(beside, 1), _begun(eager, 1))
    assert _equal(_continued(frozen), _continued(_after(begun)))  # and none has written the other's


def _after(model: Cached) -> Cached:
    _continued(model)
    return model


def test_other_weights_keep_the_state() -> None:
    model, eager = Cached(), Cached()
    frozen = _frozen(model, keep_sources="memory")
    _begun(frozen), _begun(eager)
    with torch.no_grad():
        for one in (model, eager):
            one.layer.weight.mul_(2)
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-005"):
        frozen.peek(NOTHING)
    frozen.refresh()
    assert _equal(_continued(frozen), _continued(eager))
    with torch.no_grad():
        eager.layer.bias.add_(1)
    frozen.swap_weights({"layer.bias": eager.layer.bias})
    assert _equal(_continued(frozen, 1), _continued(eager, 1))


def test_the_cache_is_written_in_place() -> None:
    model = Cached(512, 64)
    frozen = _frozen(model)
    x = torch.rand(1, 1, 64)
    frozen.decode(x)
    keys = frozen.state_dict()["keys"]
    before = keys.clone()
    _, events = record_allocator_events(lambda: frozen.decode(x))
    assert max(event.size_bytes for event in events) < keys.nbytes
    assert frozen.state_dict()["keys"] is keys
    assert (keys != before).any(-1).sum() == 1
