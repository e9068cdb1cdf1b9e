"""Regions of one storage: extents, and which may share bytes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.analysis import may_overlap
from dovetail.analysis.region import address_range, extent_bytes
from dovetail.ir.convert import describe
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import symbol

_REGIONS = st.integers(0, 3).flatmap(
    lambda rank: st.tuples(
        st.lists(st.integers(0, 3), min_size=rank, max_size=rank),
        st.lists(st.integers(0, 5), min_size=rank, max_size=rank),
        st.integers(0, 12),
    )
)
_CPU = torch.device("cpu")


def _view(memory: torch.Tensor, region: tuple[list[int], list[int], int]) -> torch.Tensor:
    return memory.as_strided(*region)


def _bytes(tensor: torch.Tensor) -> set[int]:
    """Bytes of its storage that the tensor covers."""
    places = torch.arange(100).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()
    return {place * tensor.element_size() + k for place in places for k in range(tensor.element_size())}


@settings(max_examples=200, deadline=None)
@given(_REGIONS, _REGIONS)
def test_regions_told_apart_share_no_byte(one: object, other: object) -> None:
    memory = torch.zeros(100, dtype=torch.int16)
    a, b = _view(memory, one), _view(memory, other)  # type: ignore[arg-type]
    if not may_overlap(describe(a, 0), describe(b, 0)):
        assert _bytes(a).isdisjoint(_bytes(b))
    else:
        assert a.numel()
        assert b.numel()


@settings(max_examples=100, deadline=None)
@given(_REGIONS)
def test_extents_are_exact(region: object) -> None:
    tensor = _view(torch.zeros(100, dtype=torch.int16), region)  # type: ignore[arg-type]
    extent = extent_bytes(describe(tensor, 0))
    assert extent is not None
    covered = _bytes(tensor)
    assert extent == ((min(covered), max(covered) + 1) if covered else (tensor.storage_offset() * 2,) * 2)
    start = tensor.untyped_storage().data_ptr()
    if covered:
        assert address_range(tensor) == (start + extent[0], start + extent[1])


def test_symbolic_regions_may_always_overlap_on_one_storage() -> None:
    known = TensorMeta((2,), (1,), 0, torch.float32, _CPU, 0)
    unknown = dataclasses.replace(known, offset=symbol("s0"))
    assert extent_bytes(unknown) is None
    assert may_overlap(known, unknown)
    assert not may_overlap(known, dataclasses.replace(unknown, storage=1))


@pytest.mark.parametrize(("offset", "expected"), [(1, True), (2, False)])
def test_neighbours_do_not_overlap(offset: int, expected: bool) -> None:
    first = TensorMeta((2,), (1,), 0, torch.float32, _CPU, 0)
    assert may_overlap(first, dataclasses.replace(first, offset=offset)) is expected
