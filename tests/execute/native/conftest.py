"""Tests of native code are about few nodes, of which a call of machine code costs more than they do."""

from __future__ import annotations

import pytest

from dovetail.execute.native import clusters


@pytest.fixture(autouse=True)
def _every_cluster_pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_costs" not in request.fixturenames:
        monkeypatch.setattr(clusters, "cost_of_call", lambda *_, **__: 0.0)


@pytest.fixture
def real_costs() -> None:
    """For a test of when a cluster pays."""
