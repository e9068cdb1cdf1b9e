"""Overlap of pairs: random ones against brute force, the views that programs make, and one view by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dovetail.analysis import Overlap, Reason, Region, Verdict, diophantine, may_overlap, overlap, overlaps_itself
from dovetail.analysis.footprint import Footprint, footprint_of
from tests import overlap_sweep
from tests.counting import steps_of

_Pair = tuple[torch.Tensor, torch.Tensor]


def test_random_pairs_agree_with_brute_force_and_numpy() -> None:
    tally = overlap_sweep.compare(pairs=5000, seed=1)
    assert tally.differences == []
    assert tally.overlapping > 1000
    assert tally.self_overlapping > 1000
    decided = {reason for reason, count in tally.reasons.items() if count > 10}
    assert {"disjoint (gcd)", "disjoint (nested strides)", "disjoint (search)", "overlapping (search)"} <= decided


def test_the_sweep_counts_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlap_sweep.main(["--pairs", "200"]) == 0
    assert "200 pairs" in capsys.readouterr().out
    monkeypatch.setattr(overlap_sweep, "overlap", lambda a, b: overlap(a, a))
    assert overlap_sweep.main(["--pairs", "50"]) == 1
    assert "it is disjoint" in capsys.readouterr().out


def _qkv() -> _Pair:
    q, _, v = torch.zeros(2, 5, 3 * 64).split(64, dim=-1)
    return q, v


def _heads() -> _Pair:
    x = torch.zeros(2, 16, 4 * 8).view(2, 16, 4, 8).permute(0, 2, 1, 3)
    return x[:, :2], x[:, 2:]


def _with(view: Callable[[torch.Tensor], _Pair], *shape: int) -> Callable[[], _Pair]:
    return lambda: view(torch.zeros(shape))


_DISJOINT: dict[str, Callable[[], _Pair]] = {
    "thirds of the last dimension": _qkv,
    "even and odd rows": _with(lambda x: (x[::2], x[1::2]), 8, 64),
    "blocks of heads, permuted": _heads,
    "even and odd columns": _with(lambda x: (x[:, ::2], x[:, 1::2]), 8, 64),
    "even and odd columns of an odd width": _with(lambda x: (x[:, ::2], x[:, 1::2]), 8, 65),
    "diagonal and its neighbour": _with(lambda x: (x.diagonal(), x.diagonal(1)), 9, 9),
    "halves of the columns": _with(lambda x: (x[:, :32], x[:, 32:]), 8, 64),
    "rows": _with(lambda x: (x[2], x[3]), 8, 64),
    "every third and the ones after": _with(lambda x: (x[..., ::3], x[..., 1::3]), 4, 7, 10),
    "transposed tiles": _with(lambda x: (x[:4, 4:].t(), x[4:, :4]), 8, 8),
}
_OVERLAPPING: dict[str, Callable[[], _Pair]] = {
    "a row and a column": _with(lambda x: (x[3], x[:, 5]), 8, 64),
    "a tensor and its transpose": _with(lambda x: (x, x.t()), 8, 9),
    "diagonal and anti-diagonal that cross": _with(lambda x: (x.diagonal(), x.as_strided((9,), (8,), 8)), 9, 9),
    "windows": _with(lambda x: (x[:5], x[4:]), 9),
    "even columns and every third": _with(lambda x: (x[:, ::2], x[:, 3::3]), 8, 64),
    "an expanded row": _with(lambda x: (x[2].expand(5, 64), x[:, 63]), 8, 64),
}


@pytest.mark.parametrize("name", [*_DISJOINT, *_OVERLAPPING])
def test_views_that_programs_make(name: str) -> None:
    one, other = (_DISJOINT | _OVERLAPPING)[name]()
    expected = Verdict.DISJOINT if name in _DISJOINT else Verdict.OVERLAPPING
    assert overlap(one, other).verdict is expected
    assert overlap(other, one).verdict is expected
    assert may_overlap(one, other) is (name in _OVERLAPPING)
    assert np.shares_memory(one.numpy(), other.numpy()) is (name in _OVERLAPPING)


def test_diagonal_and_anti_diagonal_of_an_even_matrix_do_not_cross() -> None:
    x = torch.zeros(8, 8)
    assert overlap(x.diagonal(), x.as_strided((8,), (7,), 7)).verdict is Verdict.DISJOINT


@pytest.mark.parametrize(
    ("sizes", "strides", "itemsize", "terms", "run"),
    [
        ((8, 4, 16), (256, 64, 4), 4, (), 2048),
        ((4, 2, 16), (256, 128, 4), 4, ((128, 7),), 64),
        ((3, 5), (0, 4), 4, (), 20),
        ((16, 1, 8), (4, 7, 64), 4, (), 512),
        ((3, 4), (8, 24), 4, ((8, 11),), 4),
        ((3, 3), (8, 16), 4, ((8, 6),), 4),
        ((), (), 2, (), 2),
    ],
)
def test_footprints_are_short(
    sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int, terms: object, run: int
) -> None:
    region = Region("memory", 12, sizes, strides, itemsize)
    footprint = footprint_of(region)
    places = overlap_sweep.bytes_of(region)
    assert footprint == Footprint(12, max(places) + 1, terms, run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensor", "verdict"),
    [
        (torch.zeros(3, 4), Verdict.DISJOINT),
        (torch.zeros(3, 4).t(), Verdict.DISJOINT),
        (torch.zeros(3, 0).expand(3, 0), Verdict.DISJOINT),
        (torch.zeros(1).expand(1, 1), Verdict.DISJOINT),
        (torch.zeros(3, 1).expand(3, 4), Verdict.OVERLAPPING),
        (torch.zeros(9).unfold(0, 3, 1), Verdict.OVERLAPPING),
        (torch.zeros(9).unfold(0, 3, 3), Verdict.DISJOINT),
        # not nested: a conservative test takes these two for overlapping
        (torch.zeros(20).as_strided((3, 2), (2, 3)), Verdict.DISJOINT),
        (torch.zeros(90).as_strided((4, 3), (10, 14)), Verdict.DISJOINT),
        (torch.zeros(90).as_strided((4, 3, 2), (10, 15, 3)), Verdict.OVERLAPPING),
    ],
)
def test_self_overlap(tensor: torch.Tensor, verdict: Verdict) -> None:
    assert overlaps_itself(tensor).verdict is verdict
    places = overlap_sweep.bytes_of(Region.of_tensor(tensor)) if tensor.numel() else []
    assert (len(set(places)) < len(places)) is (verdict is Verdict.OVERLAPPING)


def test_self_overlap_is_counted_where_the_search_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diophantine._Search, "run", lambda self, low, high: None)
    assert overlap_sweep.compare(pairs=3000, seed=2).differences == []


def test_the_hard_case_of_numpy_is_answered() -> None:
    one = Region("memory", 0, (1049, 1049, 1049), (36674, 61119, 85569), 1)
    other = Region("memory", 64023025, (1049, 1049, 1), (12223, 12224, 1), 1)
    answers: list[Overlap] = []
    assert steps_of(lambda: answers.append(overlap(one, other))) < 200_000
    (answer,) = answers
    assert (answer.verdict, answer.reason) == (Verdict.DISJOINT, Reason.BITSET)


def test_what_cannot_be_decided_is_unknown() -> None:
    sizes, strides = (5001,) * 3, (36_674_001, 61_119_001, 85_569_001)
    one = Region("memory", 0, sizes, strides, 1)
    other = Region("memory", 456_789_123_456, (5001, 5001), (12_223_001, 12_224_001), 1)
    answer = overlap(one, other)
    assert answer.verdict is not Verdict.DISJOINT or answer.reason is Reason.SEARCH
    assert (answer.verdict is Verdict.UNKNOWN) == (answer.reason is Reason.WORK_LIMIT)


def test_answers_read_well() -> None:
    x = torch.zeros(8, 64)
    assert str(overlap(x[:, ::2], x[:, 1::2])) == "disjoint (gcd)"
    assert str(overlap(x, torch.zeros(3))) == "disjoint (intervals)"
    assert str(overlap(x.to("meta"), x)) == "disjoint (different storages)"
    assert str(overlap(x[:0], x)) == "disjoint (empty)"


def test_the_public_name_is_the_function_in_any_order_of_imports() -> None:
    code = (
        "import dovetail; import dovetail.analysis.pairs; from dovetail.analysis import overlap\n"
        "assert callable(overlap), overlap"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
