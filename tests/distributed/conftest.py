"""Processes that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks, of_ranks


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    with of_ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    with of_ranks(4) as ranks:
        yield ranks
