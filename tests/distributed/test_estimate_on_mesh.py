"""Ranks on paper need and send what ranks that run do."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dovetail
from benchmarks.ranks_on_paper import row_of
from dovetail.errors import BadOptionValue, UnsupportedDistributed
from tests.distributed.ranks import Ranks

_PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def _build(mesh: Any = None) -> tuple[Any, ...]:
    """A step of sharded layers, split where the mesh has a second dimension."""
    warnings.simplefilter("ignore")  # torch's, of views
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)))
    is_split = mesh is not None and "tensor" in mesh.mesh_dim_names
    data = mesh["data"] if is_split else mesh
    for layer in model:
        if is_split:
            parallelize_module(layer, mesh["tensor"], _PLAN)
        fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, torch.ones(8, 32)


def _measured(rank: int) -> tuple[int, int]:
    step, x = _build()
    compiled = dovetail.compile_step(step)
    for _ in range(2):
        compiled(x)
    explained = compiled.explain()
    return explained.peak_bytes, explained.bytes_sent


def test_an_estimate_is_what_a_rank_needs(two_ranks: Ranks) -> None:
    found = dovetail.estimate(_build, mesh={"data": 2})
    assert two_ranks(_measured, seconds=150)[0] == (found.transient_bytes, sum(found.bytes_sent.values()))
    assert str(found).count("in group data") == 2


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 4, "tensor": 2}])
def test_the_state_is_a_share_of_all(mesh: dict[str, int]) -> None:
    found = dovetail.estimate(_build, mesh=mesh)
    split, bias = 2 * (2 * 32 * 64 + 64), 2 * 32
    share = 4 * (split // math.prod(mesh.values()) + bias // mesh["data"])
    steps = 4 * 8  # how often each parameter was updated
    assert (found.breakdown["parameters"], found.breakdown["optimizer state"]) == (share, 2 * share + steps)
    assert {group for _, group in found.bytes_sent} == set(mesh)


def test_modules_may_be_sharded_over_all_ranks_without_a_mesh() -> None:
    """`fully_shard` makes a mesh of its own then, as in a process group."""
    with_mesh, without = (dovetail.estimate(build, mesh={"data": 2}) for build in (_build, lambda _: _build()))
    assert without.transient_bytes == with_mesh.transient_bytes
    assert sum(without.bytes_sent.values()) == sum(with_mesh.bytes_sent.values())


def test_data_parallel_modules_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedDistributed, match="DistributedDataParallel"):
        dovetail.estimate(lambda _: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), mesh={"data": 2})


def test_what_is_no_mesh_is_told() -> None:
    with pytest.raises(BadOptionValue, match="has no ranks"):
        dovetail.estimate(_build, mesh={"data": 0})
    for wrong in ({}, {"data": "2"}, {"data": 2.0}, {"data": True}, {1: 2}, {"": 2}):
        with pytest.raises(BadOptionValue, match="how large each dimension is"):
            dovetail.estimate(_build, mesh=wrong)
    with pytest.raises(BadOptionValue, match="step, \\*arguments"):
        dovetail.estimate(lambda mesh: mesh.size(), mesh={"data": 2})
    with pytest.raises(BadOptionValue, match=r"cannot be called: TypeError[\s\S]*step, \*arguments"):
        dovetail.estimate(lambda mesh: (nn.Linear(2, 2), (torch.ones(1, 2),)), mesh={"data": 2})
    tensors = {"corners": torch.ones(3)}  # an argument of a step
    assert dovetail.estimate(lambda mesh: mesh["corners"].sum(), mesh=tensors).peak_bytes
    with pytest.raises(BadOptionValue, match="ranks are not there"):
        dovetail.estimate(_build, mesh={"data": 2}).max_batch("1GiB")


def test_the_table_of_large_models_is_exact_where_it_can_be() -> None:
    cells = [cell.strip() for cell in row_of("tiny", (8,), 1, 16).split("|")]
    assert cells[1:3] == ["tiny", "8"]
    assert abs(float(cells[4].removesuffix("%"))) < 2
