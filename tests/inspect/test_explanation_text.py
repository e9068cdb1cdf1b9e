"""The text of an explanation: narrow, grouped, and complete when everything is wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.explanation_text import COLUMNS, fitted
from dovetail.inspect.step_time import StepTime
from dovetail.ir.program import Origin
from tests.inspect import explained
from tests.inspect.test_holders import Stack

_ALL = [explained.explained_net, explained.explained_cut, explained.explained_write, explained.explained_copy]


@pytest.fixture(scope="module")
def stack() -> Explanation:
    """A training step of a model with repeated layers."""
    return dovetail.explain(Stack(), torch.ones(16, 8))


@pytest.mark.parametrize("make", _ALL, ids=lambda make: make.__name__)
def test_no_line_is_too_long(make: Callable[[], Explanation]) -> None:
    found = make()
    for full in (False, True):
        lines = found.text(full=full).splitlines()
        assert max(map(len, lines)) <= COLUMNS
        assert not any(line != line.rstrip() for line in lines)


def test_the_four_questions_come_in_order(stack: Explanation) -> None:
    text = str(stack)
    places = [text.index(title) for title in ("  eager ", "who holds ", "what was decided", "where the time goes")]
    assert places == sorted(places)
    sizes = set(re.findall(r"[\d.]+ (B|kB|MB|GB)\b", text))
    assert sizes == {"kB"}


def test_repeated_layers_take_no_more_lines_than_one() -> None:
    def deep(count: int) -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(count)), nn.Linear(8, 1))

    few, many = (str(dovetail.explain(deep(count), torch.ones(4, 8))).splitlines() for count in (3, 24))
    assert len(many) <= len(few) + 2
    assert any("24 x  gelu" in line for line in many)


def test_everything_is_there_when_it_is_wanted(stack: Explanation) -> None:
    text = stack.text(full=True)
    assert all(f"          {row.name}: " in text for row in stack.decisions if row.code != "IS-INPUT")
    assert all(f"{row.name}: {row.meta}" in text for row in stack.step.top(1000))
    assert " more" not in text.replace("and 1 more", "")
    assert len(text.splitlines()) > 2 * len(str(stack).splitlines())


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x" * 500, "\u202e", "\ud800", ""])
def test_any_name_stays_on_its_line(name: str, stack: Explanation) -> None:
    rows = tuple(replace(row, origin=Origin(name, 1, name, name), name=name) for row in stack.step.storages)
    decisions = tuple(replace(row, origin=Origin(name, 1, name, name), why=name) for row in stack.decisions)
    odd = replace(stack, name=name, step=replace(stack.step, storages=rows), decisions=decisions)
    for full in (False, True):
        text = odd.text(full=full)
        assert all(letter.isprintable() for line in text.split("\n") for letter in line)
        assert max(map(len, text.split("\n"))) <= COLUMNS


def test_lines_are_cut_where_they_end() -> None:
    assert fitted("x" * COLUMNS) == "x" * COLUMNS
    assert fitted("x" * (COLUMNS + 1)) == "x" * (COLUMNS - 3) + "..."


def test_what_likely_programs_are_is_said_where_they_are_named() -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.sin()
        return h.sum(), h

    text = str(dovetail.explain(two, torch.ones(3, requires_grad=True)))
    assert "two_likely" in text
    assert text.index("Programs with _likely in their names") < text.index("two_likely")
    assert "_likely" not in str(explained.explained_write())


def test_where_the_time_goes_is_said_when_it_was_measured(stack: Explanation) -> None:
    timed = dovetail.explain(Stack(), torch.ones(16, 8), measure_time=True)
    assert timed.time is not None
    text = str(timed)
    assert "not measured" not in text
    assert "of eager's time" in text
    assert re.search(r"% {2}blocks\.\*\.mlp\.0", text)
    assert "not measured" in str(stack)
    failed = replace(stack, time=StepTime(failure="IndexError: out of range"))
    assert "does not run on random inputs: IndexError: out of range" in str(failed)
