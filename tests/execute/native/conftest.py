"""Tests of native code are about few nodes, of which a call of machine code costs more than they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dovetail.execute.native import clusters
from dovetail.ir.program import Node
from tests.fresh_memory import HUGE, filled_with


@pytest.fixture(autouse=True)
def _every_cluster_pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_costs" not in request.fixturenames:
        monkeypatch.setattr(clusters, "cost_of_call", lambda *_, **__: 0.0)


@pytest.fixture(autouse=True)
def _fresh_memory_holds_huge_numbers() -> Iterator[None]:
    with filled_with(HUGE):
        yield


@pytest.fixture
def real_costs() -> None:
    """For a test of when a cluster pays."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many threads of torch as the parameter says."""
    former = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(former)


@pytest.fixture
def rows_made(monkeypatch: pytest.MonkeyPatch) -> defaultdict[type, set[Node]]:
    """By the type of claims, the nodes whose rows were made."""
    made = defaultdict[type, set[Node]](set)
    row_of = clusters.row_of

    def noted(claims: Any, *others: Any) -> Any:
        for claim in claims:
            made[type(claim)].add(claim.node)
        return row_of(claims, *others)

    monkeypatch.setattr(clusters, "row_of", noted)
    return made
