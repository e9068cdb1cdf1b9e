"""A slice of torch's databases of operators and modules equals eager; `make sweep` runs all of them.

Where a whole list has passed, the slice rotates by a seed (`tests.rotation`); so it does among the chosen entries of
the other lists. With DOVETAIL_TEST_EVERYTHING=1 all entries are judged as here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

import pytest
import torch

from tests.opdb.calls import Entry, module_entries, operator_entries
from tests.opdb.verdict import ARMS, PASS, REFUSED, ROUNDING, SKIPPED, Verdict, judge, references
from tests.rotation import everything, rotated

SAMPLES = 3
BLOCK = 25

# Refused, though aot_eager takes them: see the error.
REFUSALS = {"resize_": "DT-ALIAS-002", "resize_as_": "DT-ALIAS-002", "to_sparse": "DT-CAPTURE-004"}
# Known to differ, by how the verdict begins: eager refuses a loss that is not well defined, compiled code does not.
KNOWN = {"linalg_eig": "backward raises: eager has Raised(error=RuntimeError('linalg_eig_backward: The eigenvectors"}


def _fixed(of: int, entries: Iterable[Entry], first: int) -> list[Entry]:
    """Every n-th entry of a list that was not run as a whole with this judgement yet, so that it cannot rotate."""
    return list(entries) if everything() else list(islice(entries, first, None, of))


FLOAT32 = list(operator_entries([torch.float32]))
CHOSEN = [
    *rotated(FLOAT32[::2], 25),
    *rotated(
        [
            *_fixed(5, FLOAT32[1::2], 2),
            *_fixed(24, operator_entries([torch.float64]), 1),
            *_fixed(16, operator_entries([torch.bfloat16]), 2),
            *_fixed(16, operator_entries([torch.complex64]), 3),
            *_fixed(16, operator_entries([torch.int64]), 5),
            *_fixed(12, operator_entries([torch.float32], transposed=True), 6),
            *_fixed(4, module_entries([torch.float32]), 0),
        ],
        5,
    ),
]


@pytest.mark.parametrize("first", range(0, len(CHOSEN), BLOCK))
@pytest.mark.usefixtures("alone")
def test_operators_and_modules_equal_eager(first: int) -> None:
    wrong = {entry.key: verdict for entry in CHOSEN[first : first + BLOCK] if (verdict := _shortfall(entry))}
    assert not wrong


def _shortfall(entry: Entry) -> Verdict | None:
    """What is wrong with an entry. Refusals, rounding, and strides of gradients count if aot_eager does better."""
    found = references(entry, SAMPLES)
    verdict = judge(found, ARMS["dovetail"])
    if verdict.status in (PASS, SKIPPED):
        return None
    if verdict.status == REFUSED and verdict.reason.startswith(REFUSALS.get(entry.name, "no refusal")):
        return None
    if entry.name in KNOWN and verdict.reason.startswith(KNOWN[entry.name]):
        return None
    excusable = verdict.status in (REFUSED, ROUNDING) or re.match(r"gradient of .* strides", verdict.reason)
    return None if excusable and judge(found, ARMS["aot"]).status != PASS else verdict


def test_entries_have_keys_of_their_own() -> None:
    keys = [entry.key for entry in (*operator_entries(), *operator_entries(transposed=True), *module_entries())]
    assert len(keys) == len(set(keys)) > 5000
