"""Numbers that are inputs of a step's program, as keys of dictionaries that the step fills."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


def losses(s: Any, x: Tensor) -> Any:
    s.count += 1
    s.table[s.count % 3] = x.sum() * s.count
    return sum(s.table.values())


def counts(s: Any, x: Tensor) -> Any:
    s.count += 1
    s.table[s.count % 3] = s.table.get(s.count % 3, 0) + 1
    return x * s.table[s.count % 3]


def rates(s: Any, x: Tensor) -> Any:
    s.count = (s.count + 1) % 2
    s.table[s.count / 2] = s.count
    return x + len(s.table)


KINDS: list[Callable[[], Any]] = [dict, OrderedDict, Counter, UserDict, lambda: defaultdict(float)]


def _shown(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


@pytest.mark.filterwarnings("ignore:.*was compiled for.*")
@pytest.mark.parametrize("step", [losses, counts, rates])
@pytest.mark.parametrize("kind", KINDS, ids=["dict", "OrderedDict", "Counter", "UserDict", "defaultdict"])
def test_tables_are_filled_as_in_eager_mode(step: Any, kind: Callable[[], Any]) -> None:
    found = []
    for compiled in (False, True):
        s = SimpleNamespace(table=kind(), count=0)

        def run(x: Tensor, s: Any = s) -> Any:
            return step(s, x)

        called, seen = dovetail.compile_step(run) if compiled else run, []
        for n in range(14):
            result = called(torch.ones(2) * n)
            seen.append((_shown(result), [(key, type(key), _shown(x)) for key, x in s.table.items()], type(s.table)))
        found.append(seen)
    assert found[0] == found[1]
