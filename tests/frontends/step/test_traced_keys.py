"""Numbers that are inputs of a step's program, as keys of dictionaries that the step fills."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Pair:
    """A result with a table."""

    table: dict[Any, Any]
    count: int


MADE: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "dict": lambda count, rate, x: {count: x, "other": count},
    "float": lambda count, rate, x: {rate: x, -rate: count},
    "tuple": lambda count, rate, x: {(count, "other"): x},
    "inside": lambda count, rate, x: [{"one": {count: (x, {rate: count})}}],
    "OrderedDict": lambda count, rate, x: OrderedDict([(count, x)]),
    "defaultdict": lambda count, rate, x: defaultdict(int, {count: x}),
    "dataclass": lambda count, rate, x: Pair({count: x}, count),
}


def _looked_at(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value).__name__, [(key, type(key), _looked_at(held)) for key, held in value.items()]
    if isinstance(value, list | tuple):
        return [_looked_at(held) for held in value]
    return _looked_at(vars(value)) if isinstance(value, Pair) else _shown(value)


@pytest.mark.filterwarnings("ignore:.*runs in eager mode from now on")  # that keeps a table of a class of C
@pytest.mark.parametrize("keep", ["returned", "set", "put", "handed"])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_tables_that_the_step_makes(made: Callable[[Any, Any, Tensor], Any], keep: str) -> None:
    found = []
    for compiled in (False, True):
        s = SimpleNamespace(count=0, rate=0.5, held=None, log=[])
        note = dovetail.host_call(s.log.append)

        def run(x: Tensor, s: Any = s, note: Any = note) -> Any:
            s.count += 1
            s.rate *= 0.5
            table = made(s.count, s.rate, x * 2)
            if keep == "set":
                s.held = table
            elif keep == "put":
                s.log.append(table)
            elif keep == "handed":
                note(table)
            return table if keep == "returned" else None

        called = dovetail.compile_step(run, on_unsupported="eager") if compiled else run
        results = [_looked_at(called(torch.ones(2) * number)) for number in range(3)]
        found.append([results, _looked_at(s.held), _looked_at(s.log), s.count])
    assert found[0] == found[1]
