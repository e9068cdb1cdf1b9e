"""Calls of C that read the outside are refused by name; those that depend on their arguments alone are not."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import math
import os
import random
import re
import secrets
import tempfile
import threading
import time
import timeit
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dovetail
from dovetail.errors import IteratorRead, OutsideRead

FILE = Path(__file__)
DRAWS = random.Random(0)
GENERATOR = np.random.default_rng(0)

REFUSED: dict[str, Callable[[], Any]] = {
    "time.time": time.time,
    "time.perf_counter": timeit.default_timer,
    "posix.stat": lambda: os.path.exists(FILE),
    "io.open": FILE.read_text,
    "posix.listdir": lambda: os.listdir("."),
    "posix.getcwd": os.getcwd,
    "posix.urandom": lambda: secrets.randbelow(3),
    "random": random.random,
    "Random": DRAWS.random,
    "numpy.random": np.random.rand,
    "numpy.random ": GENERATOR.random,
    "datetime": datetime.datetime.now,
    "posix.urandom ": uuid.uuid4,
    "random.Random": tempfile.mkdtemp,
}
ALLOWED: dict[str, Callable[[], Any]] = {
    "math": lambda: math.sqrt(4.0),
    "a list": lambda: sorted([3, 1])[0],
    "text": lambda: int(re.sub("a", "1", "a")),
    "JSON": lambda: json.loads(json.dumps({"a": 2}))["a"],
    "a file in memory": lambda: len(io.StringIO("abc").read()),
    "numbers of NumPy": lambda: float(np.arange(3).sum() + np.cos(0.0)),
    "a path": lambda: len(os.path.join("a", "b")),
    "a date": lambda: datetime.date(2020, 1, 2).day,
    "a module that is imported": lambda: __import__("colorsys").rgb_to_hsv(1.0, 0.5, 0.5)[1],
    "a warning": lambda: float(torch.ones(1).shape[0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_outside_is_refused_by_name(name: str) -> None:
    ask = REFUSED[name]
    compiled = dovetail.compile(lambda x: x * (hash(str(ask())) % 7))
    with pytest.raises(OutsideRead, match=name.strip()) as caught:
        compiled(torch.ones(2))
    assert f"{__file__}" in str(caught.value) or "numpy" in name
    with pytest.raises(OutsideRead):
        compiled(torch.ones(2))


@pytest.mark.parametrize("name", ALLOWED)
def test_what_depends_on_its_arguments_is_allowed(name: str) -> None:
    ask = ALLOWED[name]
    compiled = dovetail.compile(lambda x: x * ask())
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * ask())
    assert len(compiled.graphs) == 1


def _first(items: Any) -> Any:
    for item in items:
        return item
    return None


MOVING: dict[str, Callable[[], Any]] = {
    "list_iterator": lambda: iter([1.0, 2.0, 3.0]),
    "generator": lambda: (float(n) for n in range(5)),
    "itertools.count": itertools.count,
    "zip": lambda: zip([1.0], [2.0], strict=True),
    "TextIOWrapper": FILE.open,
}


@pytest.mark.parametrize("read", [next, _first])
@pytest.mark.parametrize("name", MOVING)
def test_what_moves_on_with_each_read_is_refused_before_it_does(name: str, read: Callable[[Any], Any]) -> None:
    items, untouched = MOVING[name](), MOVING[name]()
    compiled = dovetail.compile(lambda x: x * hash(read(items)))
    with pytest.raises(IteratorRead, match=name):
        compiled(torch.ones(2))
    assert next(items) == next(untouched)
    for each in (items, untouched):
        getattr(each, "close", bool)()


def test_an_iterator_that_the_call_makes() -> None:
    compiled = dovetail.compile(lambda x: x * sum(a * b for a, b in zip([1.0, 2.0], reversed([3.0, 4.0]), strict=True)))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 10.0))


def test_batches_are_not_drawn_inside() -> None:
    loader = DataLoader(torch.arange(6.0), batch_size=2)
    compiled = dovetail.compile(lambda x: x * next(iter(loader)))
    with pytest.raises(OutsideRead, match="draws another batch"):
        compiled(torch.ones(2))
    assert torch.equal(dovetail.compile(lambda x: x * len(loader))(torch.ones(2)), torch.full((2,), 3.0))


def test_code_that_catches_everything_does_not_hide_a_refusal() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * time.time()
        except Exception:
            return x

    with pytest.raises(OutsideRead, match=r"time\.time"):
        dovetail.compile(f)(torch.ones(2))


def test_a_generator_that_the_call_makes_and_seeds() -> None:
    compiled = dovetail.compile(lambda x: x * random.Random(3).random())
    assert compiled(torch.ones(1)).item() == pytest.approx(random.Random(3).random())
    for ask in (lambda: random.Random().random(), lambda: random.seed(3)):
        with pytest.raises(OutsideRead, match=r"random\.Random"):
            dovetail.compile(lambda x, ask=ask: x * (ask() or 1.0))(torch.ones(1))


def test_what_a_setting_says_is_asked_in_each_call() -> None:
    compiled = dovetail.compile(lambda x: x * torch.get_num_threads())
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            assert compiled(torch.ones(1)).item() == number
    finally:
        torch.set_num_threads(threads)
    assert len(compiled.graphs) == 2


def test_other_threads_are_left_alone() -> None:
    found: list[float] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: found.append(time.time()))
        thread.start()
        thread.join()
        return x * 2

    assert torch.equal(dovetail.compile(f)(torch.ones(1)), torch.full((1,), 2.0))
    assert found
