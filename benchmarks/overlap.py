"""Measure overlap analysis next to torch's own check and to NumPy's: many views at once, and pairs one by one.

torch's check is the one that AOTAutograd makes of aliased inputs: the views that may overlap another one. It compares
intervals of addresses, and columns of a matrix in two dimensions. NumPy's, `shares_memory`, is exact, for one pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._dynamo.guards import compute_overlapping_tensors

from benchmarks.tables import write_tables
from dovetail.analysis import Verdict, overlap, overlap_groups

Views = list[torch.Tensor]

# NumPy compares every pair; beyond this many views that would take minutes.
_MOST_FOR_NUMPY = 1000
# Candidate solutions that NumPy may try in the hard case, unless it is asked to take all the time it needs.
_NUMPY_WORK = 1000
_REPEATS = 5
_WIDTH_IN_A_FILE = 150
_GROUP_HEAD = ("views", "of them", "tied", "dovetail ms", "flags", "torch ms", "flags", "numpy ms", "flags")
_PAIR_HEAD = ("pair", "truth", "dovetail", "us", "torch", "us", "numpy", "us")


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer. time_s: least of some repeats; None when it was not asked. answer: None when it gave up."""

    time_s: float | None
    answer: int | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """One question to all three. truth: how many views share bytes with another one, or whether two do."""

    name: str
    count: int
    truth: int | bool
    dovetail: Cell
    torch: Cell
    numpy: Cell


# --- many views -----------------------------------------------------------------------------------------------------


def _slices(count: int) -> Views:
    return list(torch.zeros(count * 16).split(16))


def _columns(count: int) -> Views:
    return list(torch.zeros(16, count).unbind(1))


def _tiles(count: int) -> Views:
    side = isqrt(count - 1) + 1
    x = torch.zeros(side * 4, side * 4)
    return [x[i : i + 4, j : j + 4] for i in range(0, side * 4, 4) for j in range(0, side * 4, 4)][:count]


def _windows(count: int) -> Views:
    x = torch.zeros(count + 16)
    return [x[i : i + 16] for i in range(count)]


FAMILIES: dict[str, tuple[Callable[[int], Views], bool]] = {
    "disjoint slices": (_slices, False),
    "interleaved columns": (_columns, False),
    "tiles of a matrix": (_tiles, False),
    "sliding windows": (_windows, True),
}


def measure_groups(counts: Sequence[int]) -> list[Row]:
    """Ask for the views that share bytes with another one, for each family and each number of views."""
    rows = []
    for name, (make, are_tied) in FAMILIES.items():
        for count in counts:
            views = make(count)
            rows.append(
                Row(
                    name,
                    count,
                    count if are_tied else 0,
                    _timed(lambda views=views: sum(len(g) for g in overlap_groups(views) if len(g) > 1)),
                    _timed(lambda views=views: len(compute_overlapping_tensors(views, symbolic=False))),
                    _numpy_flags(views),
                )
            )
    return rows


def _numpy_flags(views: Views) -> Cell:
    if len(views) > _MOST_FOR_NUMPY:
        return Cell(None, None)
    arrays = [view.numpy() for view in views]

    def flags() -> int:
        found = set()
        for i, one in enumerate(arrays):
            for j in range(i):
                if np.shares_memory(one, arrays[j]):
                    found |= {i, j}
        return len(found)

    return _timed(flags)


# --- pairs ----------------------------------------------------------------------------------------------------------


def _pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor, bool]]:
    """Name -> two views, and whether they share bytes."""
    x, square = torch.zeros(64, 64), torch.zeros(64, 64)
    q, _, v = torch.zeros(4, 16, 3 * 64).split(64, -1)
    heads = torch.zeros(2, 16, 4 * 64).view(2, 16, 4, 64).permute(0, 2, 1, 3)
    return {
        "q and v of a split qkv": (q, v, False),
        "even and odd rows": (x[::2], x[1::2], False),
        "blocks of heads, 4-d, permuted": (heads[:, :2], heads[:, 2:], False),
        "columns ::2 and 1::2": (x[:, ::2], x[:, 1::2], False),
        "diagonal and next to it": (square.diagonal(), square.diagonal(1), False),
        "halves of the columns": (x[:, :32], x[:, 32:], False),
        "two rows": (x[2], x[3], False),
        "a row and a column": (x[2], x[:, 3], True),
        "columns ::2 and 3::3": (x[:, ::2], x[:, 3::3], True),
        "a matrix and its transpose": (x, x.t(), True),
    }


def _hard_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """The example in the documentation of `numpy.shares_memory` of a pair that takes extremely long."""
    x = torch.zeros(192_163_377, dtype=torch.int8)
    return (
        x.as_strided((1049, 1049, 1049), (36674, 61119, 85569)),
        x.as_strided((1049, 1049, 1), (12223, 12224, 1), 64_023_025),
    )


def measure_pairs(*, wait_for_numpy: bool) -> list[Row]:
    """Ask whether two views share bytes. wait_for_numpy: let it finish the hard case, more than a minute."""
    rows = []
    for name, (one, other, truth) in _pairs().items():
        a, b = one.numpy(), other.numpy()
        rows.append(
            Row(
                name,
                2,
                truth,
                _timed(lambda one=one, other=other: _answer(one, other), number=2000),
                _timed(lambda one=one, other=other: bool(compute_overlapping_tensors([one, other], symbolic=False))),
                _timed(lambda a=a, b=b: bool(np.shares_memory(a, b)), number=2000),
            )
        )
    one, other = _hard_pair()
    a, b = one.numpy(), other.numpy()
    work = None if wait_for_numpy else _NUMPY_WORK

    def ask_numpy() -> bool | None:
        try:
            return bool(np.shares_memory(a, b, max_work=work))
        except np.exceptions.TooHardError:
            return None

    by_torch = _timed(lambda: bool(compute_overlapping_tensors([one, other], symbolic=False)))
    rows.append(
        Row("NumPy's hard case", 2, False, _timed(lambda: _answer(one, other)), by_torch, _timed(ask_numpy, repeats=1))
    )
    return rows


def _answer(one: torch.Tensor, other: torch.Tensor) -> bool | None:
    verdict = overlap(one, other).verdict
    return None if verdict is Verdict.UNKNOWN else verdict is Verdict.OVERLAPPING


def _timed(ask: Callable[[], Any], *, number: int = 1, repeats: int = _REPEATS) -> Cell:
    """The answer, and the least time of one question."""
    least, answer = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            answer = ask()
        least = min(least, (time.perf_counter() - start) / number)
    return Cell(least, answer)


# --- report ---------------------------------------------------------------------------------------------------------


def write_overlap_report(groups: Sequence[Row], pairs: Sequence[Row], machine: dict[str, Any], out: Path) -> None:
    """Print both tables, and write `overlap.json` and `overlap.md` into `out`, a folder that is made if need be."""
    tables = {
        "Views that share bytes with another one": (_GROUP_HEAD, [_group_cells(row) for row in groups]),
        "Pairs": (_PAIR_HEAD, [_pair_cells(row) for row in pairs]),
    }
    write_tables("overlap", tables, {"rows": [asdict(row) for row in (*groups, *pairs)]}, machine, out)


def _group_cells(row: Row) -> list[str]:
    cells = [row.name, f"{row.count:,}", f"{row.truth:,}"]
    for cell in (row.dovetail, row.torch, row.numpy):
        cells += ["-", "-"] if cell.time_s is None else [_three_digits(cell.time_s * 1e3), f"{cell.answer:,}"]
    return cells


def _pair_cells(row: Row) -> list[str]:
    cells = [row.name, _word(row.truth)]
    for cell in (row.dovetail, row.torch, row.numpy):
        wrong = "" if cell.answer in (row.truth, None) else " (wrong)"
        cells += [_word(cell.answer) + wrong, _three_digits((cell.time_s or 0) * 1e6)]
    return cells


def _word(answer: bool | int | None) -> str:
    return "gave up" if answer is None else "overlap" if answer else "disjoint"


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
