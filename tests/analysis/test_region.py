"""Regions: where tensors of every kind lie, and how far they reach."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.analysis import Region, Verdict, overlap
from dovetail.analysis.buffers import lies_in
from dovetail.analysis.region import address_range, extent_bytes, region_of
from dovetail.errors import UnsupportedTensor
from dovetail.ir.convert import describe
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import evaluate, symbol
from dovetail.torch_compat.fakes import fake_of, new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.symbols import new_shape_env
from tests.overlap_sweep import bytes_of

_REGIONS = st.integers(0, 3).flatmap(
    lambda rank: st.tuples(
        st.lists(st.integers(0, 3), min_size=rank, max_size=rank),
        st.lists(st.integers(0, 5), min_size=rank, max_size=rank),
        st.integers(0, 12),
    )
)
_CPU = torch.device("cpu")


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:, :4], x[:, 4:]


@settings(max_examples=100, deadline=None)
@given(_REGIONS)
def test_extents_are_exact(region: tuple[list[int], list[int], int]) -> None:
    tensor = torch.zeros(100, dtype=torch.int16).as_strided(*region)
    extent = extent_bytes(describe(tensor, 0))
    assert extent is not None
    covered = bytes_of(Region.of_meta(describe(tensor, 0)))
    assert extent == ((min(covered), max(covered) + 1) if covered else (extent[0], extent[0]))
    if tensor.numel():
        start = tensor.data_ptr() - extent[0]
        assert address_range(tensor) == (start + extent[0], start + extent[1])


def test_a_negative_stride_reaches_backwards() -> None:
    backwards = Region("memory", 12, (4,), (-4,), 4)
    assert set(bytes_of(backwards)) == set(range(16))
    assert overlap(backwards, Region("memory", 0, (4,), (1,), 1)).verdict is Verdict.OVERLAPPING
    assert overlap(backwards, Region("memory", 16, (4,), (1,), 1)).verdict is Verdict.DISJOINT


def test_symbolic_sizes_have_no_known_extent() -> None:
    unknown = TensorMeta((symbol("s0"),), (1,), 2, torch.float32, _CPU, 0)
    assert extent_bytes(unknown) is None
    assert Region.of_meta(unknown) == Region(("program", 0), 8, (symbol("s0"),), (4,), 4)
    assert overlap(unknown, dataclasses.replace(unknown, storage=1)).verdict is Verdict.DISJOINT


def test_real_tensors_are_told_apart_by_address() -> None:
    array = np.zeros((6, 8), dtype=np.float32)
    one, other = torch.from_numpy(array), torch.from_numpy(array)
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    left, _ = _halves(one)
    assert overlap(left, other).verdict is Verdict.OVERLAPPING
    assert overlap(left, _halves(other)[1]).verdict is Verdict.DISJOINT
    assert overlap(left, torch.from_numpy(array[:, 4:])).verdict is Verdict.DISJOINT
    assert overlap(left, torch.from_numpy(array[2:, 3:])).verdict is Verdict.OVERLAPPING
    assert overlap(left, torch.zeros(6, 8)).verdict is Verdict.DISJOINT


def test_parameters_and_views_of_other_types_share_memory() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 4))
    assert overlap(parameter, parameter.data.view(torch.uint8)).verdict is Verdict.OVERLAPPING
    pairs = torch.zeros(3, dtype=torch.complex64)
    assert overlap(pairs.real, pairs.imag).verdict is Verdict.DISJOINT
    assert overlap(pairs, pairs.imag).verdict is Verdict.OVERLAPPING


@pytest.mark.parametrize("kind", ["real", "meta", "fake"])
def test_tensors_of_every_kind(kind: str) -> None:
    real = torch.zeros(6, 8)
    mode = new_fake_mode()
    x, y = {
        "real": lambda: (real, real.clone()),
        "meta": lambda: (real.to("meta"), real.to("meta")),
        "fake": lambda: (fake_of(mode, real), fake_of(mode, real.clone())),
    }[kind]()
    left, right = _halves(x)
    assert overlap(left, right).verdict is Verdict.DISJOINT
    assert overlap(left, x[1:, 3:]).verdict is Verdict.OVERLAPPING
    assert overlap(x, y).verdict is Verdict.DISJOINT
    assert overlap(x[:0], x).verdict is Verdict.DISJOINT


def test_fake_tensors_of_symbolic_size() -> None:
    mode = new_fake_mode(new_shape_env())
    x = symbolic_fake_of(mode, torch.zeros(6, 10), "x")
    env = {str(size): number for size, number in zip(region_of(x).sizes, (5, 7), strict=True)}
    region = region_of(x[:, 3:])
    assert [evaluate(n, env) for n in (*region.sizes, *region.strides_bytes, region.start_bytes)] == [5, 4, 28, 4, 12]
    with mode:
        assert overlap(x[:, :3], x[:, 3:], symbols_at_least=2).verdict is Verdict.DISJOINT
        assert overlap(x[0], x[1]).verdict is Verdict.DISJOINT
        assert overlap(x, x[1:], symbols_at_least=2).verdict is Verdict.OVERLAPPING


def test_what_is_no_strided_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedTensor, match="sparse_coo"):
        region_of(torch.eye(2).to_sparse())
    with pytest.raises(UnsupportedTensor, match="inside a transform"):
        torch.func.vmap(region_of)(torch.zeros(3, 4))
    with pytest.raises(TypeError, match="not a tensor, a TensorMeta or a Region: 3"):
        region_of(3)  # type: ignore[arg-type]
    x = symbolic_fake_of(new_fake_mode(new_shape_env()), torch.zeros(6, 10), "x")
    with pytest.raises(ValueError, match="no addresses"):
        address_range(x)


def _at(region: Region, number: int) -> Region:
    """A region whose symbol is this number."""
    sizes, strides = (tuple(evaluate(x, {"s0": number}) for x in part) for part in (region.sizes, region.strides_bytes))
    return dataclasses.replace(region, sizes=sizes, strides_bytes=strides)


def test_regions_of_any_size_within_others() -> None:
    """What is said to lie in another region does so, whatever number a symbol is."""
    generator, found = random.Random(3), 0

    def drawn(step: int) -> Region:
        sizes = (symbol("s0"), generator.randint(1, 4), generator.randint(1, 5))
        steps = (generator.choice((step, step, 32)), generator.choice((4, 8, 16, 32)), generator.choice((4, 8, 16)))
        return Region(0, generator.choice((0, 4, 8, 16, 32)), sizes, steps, 4)

    for _ in range(3000):
        step = generator.choice((64, 128, 256))
        inner, outer = drawn(step), drawn(step)
        if lies_in(inner, outer):
            found += 1
            assert all({*bytes_of(_at(inner, n))} <= {*bytes_of(_at(outer, n))} for n in (1, 2, 3, 5)), (inner, outer)
    assert found > 100
