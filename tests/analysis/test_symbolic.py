"""Regions of symbolic size: every verdict and every guard holds for all numbers that the symbols can be."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from dovetail.analysis import Overlap, Reason, Region, Verdict, overlap, overlaps_itself
from dovetail.analysis.polynomials import polynomial_of
from dovetail.ir.sizes import Size, SizeExpr, evaluate, symbol
from tests.overlap_sweep import bytes_of

S0, S1, S2 = (symbol(f"s{i}") for i in range(3))
_NAMES = ("s0", "s1", "s2")
_ITEM = 2


def _add(*sizes: Size) -> Size:
    return sum(sizes) if all(isinstance(s, int) for s in sizes) else SizeExpr("add", sizes)  # type: ignore[arg-type]


def _mul(*sizes: Size) -> Size:
    return SizeExpr("mul", sizes)


def _sub(a: Size, b: Size) -> Size:
    return SizeExpr("add", (a, SizeExpr("mul", (b, -1))))


def _region(start: Size, sizes: tuple[Size, ...], strides: tuple[Size, ...]) -> Region:
    """A region from a start and strides in elements."""
    return Region("memory", _mul(start, _ITEM), sizes, tuple(_mul(stride, _ITEM) for stride in strides), _ITEM)


def _known(region: Region, env: dict[str, int]) -> Region:
    def number(size: Size) -> int:
        return int(evaluate(size, env))

    return Region(
        region.storage,
        number(region.start_bytes),
        tuple(map(number, region.sizes)),
        tuple(map(number, region.strides_bytes)),
        region.itemsize,
    )


def _check(answer: Overlap, regions: list[Region], limit: int = 6) -> list[bool]:
    """Check an answer for all numbers of the symbols; whether bytes are shared for each that the regions allow."""
    shared = []
    for numbers in itertools.product(range(limit), repeat=len(_NAMES)):
        env = dict(zip(_NAMES, numbers, strict=True))
        known = [_known(region, env) for region in regions]
        if any(size < 0 for region in known for size in region.sizes):  # type: ignore[operator]
            continue  # no tensor has such sizes
        places = [bytes_of(region) for region in known]
        one, other = set(places[0]), set(places[-1])
        shares = bool(one & other) if len(places) == 2 else len(one) < len(places[0])
        shared.append(shares)
        if answer.verdict is Verdict.DISJOINT:
            assert not shares, (regions, env)
        elif answer.verdict is Verdict.OVERLAPPING:
            assert shares, (regions, env)
        elif answer.guard is not None and evaluate(answer.guard, env):
            assert not shares, (regions, env, answer)
    return shared


_COLUMNS = (S1, 1)
_CASES: dict[str, tuple[Region, Region, str]] = {
    "x[:s0], x[s0:]": (_region(0, (S0,), (1,)), _region(S0, (_sub(S1, S0),), (1,)), "disjoint (intervals)"),
    "x[i], x[j]": (_region(S1, (S1,), (1,)), _region(_mul(S1, 3), (S1,), (1,)), "disjoint (intervals)"),
    "x[:s0, :], x[s0:, :]": (
        _region(0, (S0, S1), _COLUMNS),
        _region(_mul(S0, S1), (_sub(S2, S0), S1), _COLUMNS),
        "disjoint (intervals)",
    ),
    "x[:, :s2], x[:, s2:]": (
        _region(0, (S0, S2), _COLUMNS),
        _region(S2, (S0, _sub(S1, S2)), _COLUMNS),
        "disjoint (period)",
    ),
    "x[:, s2:], x[:, :s2]": (
        _region(S2, (S0, _sub(S1, S2)), _COLUMNS),
        _region(0, (S0, S2), _COLUMNS),
        "disjoint (period)",
    ),
    "q and v of qkv": (
        _region(0, (S0, S1), (_mul(S1, 3), 1)),
        _region(_mul(S1, 2), (S0, S1), (_mul(S1, 3), 1)),
        "disjoint (period)",
    ),
    "even and odd rows": (
        _region(0, (S0, 4), (8, 1)),
        _region(4, (SizeExpr("floordiv", (S0, 2)), 4), (8, 1)),
        "disjoint (period)",
    ),
    "heads, permuted": (
        _region(0, (S0, 2, S1, 8), (_mul(S1, 32), 8, 32, 1)),
        _region(16, (S0, 2, S1, 8), (_mul(S1, 32), 8, 32, 1)),
        "disjoint (period)",
    ),
    "two columns": (
        _region(0, (S0,), (S1,)),
        _region(1, (S0,), (S1,)),
        "unknown (symbolic), disjoint if ((s0 * s1) <= s1) or (2 <= s1)",
    ),
    "x[:s0], x[s1:]": (
        _region(0, (S0,), (1,)),
        _region(S1, (S2,), (1,)),
        "unknown (symbolic), disjoint if s0 <= s1",
    ),
    "x and itself": (_region(0, (S0,), (1,)), _region(0, (S0,), (1,)), "unknown (symbolic), disjoint if s0 <= 0"),
    "rows of a fixed size at one symbol": (
        _region(S0, (4,), (2,)),
        _region(_add(S0, 1), (4,), (2,)),
        "disjoint (gcd)",
    ),
    "sizes from one": (
        _region(0, (_add(S0, 1),), (1,)),
        _region(S0, (2,), (1,)),
        "overlapping (same bytes)",
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_views_of_symbolic_tensors(name: str) -> None:
    one, other, expected = _CASES[name]
    answer = overlap(one, other)
    assert str(answer) == expected
    backward = overlap(other, one)
    assert backward.verdict is answer.verdict
    for found in (answer, backward):
        shared = _check(found, [one, other], limit=5)
        assert any(shared) or answer.verdict is Verdict.DISJOINT


def test_sizes_that_are_never_small_prove_more() -> None:
    columns = _region(0, (S0,), (S1,)), _region(1, (S0,), (S1,))
    assert overlap(*columns).verdict is Verdict.UNKNOWN
    assert overlap(*columns, symbols_at_least=2).verdict is Verdict.DISJOINT
    same = _region(0, (S0, S1), _COLUMNS)
    assert overlap(same, same).verdict is Verdict.UNKNOWN
    assert overlap(same, same, symbols_at_least=1) == Overlap(Verdict.OVERLAPPING, Reason.SAME_BYTES)
    assert overlap(same, _region(S1, (S1,), (1,)), symbols_at_least=2).verdict is Verdict.OVERLAPPING


def _random_region(choose: random.Random) -> Region:
    """A slice of a contiguous tensor of symbolic size, or a look-alike of one."""
    shape: list[Size] = [choose.choice((S0, S1, S2, 2, 3, _add(S0, 1))) for _ in range(choose.randint(1, 3))]
    start: Size = 0
    sizes: list[Size] = []
    strides: list[Size] = []
    for place, size in enumerate(shape):
        stride: Size = 1
        for inner in shape[place + 1 :]:
            stride = inner if stride == 1 else _mul(stride, inner)
        first: Size = choose.choice((0, 0, 1, S0, S1, SizeExpr("floordiv", (S2, 2))))
        start = _add(start, _mul(first, stride))
        count = choose.choice((_sub(size, first), first, 1, size, SizeExpr("floordiv", (_add(size, 1), 2))))
        sizes.append(count)
        strides.append(_mul(stride, choose.choice((1, 1, 1, 2))))
    order = choose.sample(range(len(shape)), len(shape))
    return _region(start, tuple(sizes[i] for i in order), tuple(strides[i] for i in order))


def test_random_symbolic_regions_agree_with_brute_force() -> None:
    choose = random.Random(0)
    verdicts: Counter[tuple[Verdict, bool]] = Counter()
    for _ in range(250):
        one, other = _random_region(choose), _random_region(choose)
        answer = overlap(one, other)
        verdicts[answer.verdict, answer.guard is not None] += 1
        _check(answer, [one, other], limit=4)
        _check(overlaps_itself(one), [one], limit=4)
    assert verdicts[Verdict.DISJOINT, False] > 15
    assert verdicts[Verdict.UNKNOWN, True] > 150


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (_region(0, (S0, S1), _COLUMNS), "disjoint (nested strides)"),
        (_region(0, (S1, S0), (1, S1)), "disjoint (nested strides)"),
        (_region(S2, (S0, S1, S2), (_mul(S1, S2), S2, 1)), "disjoint (nested strides)"),
        (_region(0, (S0, 3), (0, 1)), "unknown (symbolic), disjoint if s0 <= 1"),
        (_region(0, (_add(S0, 2), 3), (0, 1)), "overlapping (same bytes)"),
        (_region(0, (S0, S1), (S2, 1)), "unknown (symbolic), disjoint if (s1 <= s2) or (s0 <= 1)"),
        (_region(0, (S0, 3), (1, 1)), "unknown (symbolic), disjoint if s0 <= 1"),
    ],
)
def test_self_overlap(region: Region, expected: str) -> None:
    answer = overlaps_itself(region)
    assert str(answer) == expected
    _check(answer, [region])


def test_polynomials_divide_with_a_rest() -> None:
    choose = random.Random(0)

    def random_polynomial() -> Size:
        terms = [_mul(choose.randint(-4, 4), choose.choice((1, S0, S1, _mul(S0, S1)))) for _ in range(3)]
        return _add(*terms)

    for _ in range(300):
        size, by = random_polynomial(), random_polynomial()
        polynomial, divisor = polynomial_of(size), polynomial_of(by)
        env = {name: choose.randint(0, 9) for name in _NAMES}
        assert evaluate(polynomial.to_size(), env) == evaluate(size, env)
        product = polynomial * divisor
        assert evaluate(product.to_size(), env) == evaluate(size, env) * evaluate(by, env)
        if divisor.coefficients:
            quotient, rest = polynomial.divided_by(divisor)
            assert (quotient * divisor + rest).coefficients == polynomial.coefficients
            assert not product.divided_by(divisor)[1].coefficients


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (_mul(S0, 3), True),
        (_sub(S0, 1), False),
        (SizeExpr("floordiv", (S0, 2)), True),
        (_mul(SizeExpr("floordiv", (_mul(S0, -1), 2)), -1), True),
        (SizeExpr("floordiv", (_mul(S0, -1), 2)), False),
        (SizeExpr("mod", (_sub(S0, 9), 4)), True),
        (SizeExpr("max", (_sub(S0, 9), 0)), True),
        (SizeExpr("min", (_sub(S0, 9), S1)), False),
        (SizeExpr("pow", (S0, 2)), True),
    ],
)
def test_signs(size: Size, expected: bool) -> None:
    assert polynomial_of(size).is_nonnegative() is expected
