"""JSON of numbers that a step computes: the text is made of each run's numbers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from json import dumps
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import DovetailError

ENCODER = json.JSONEncoder(sort_keys=True)


class Record:
    """What an encoder does not know."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss


class Encoder(json.JSONEncoder):
    """Knows records."""

    def default(self, o: Any) -> Any:
        return vars(o)


WRITTEN: dict[str, Callable[[Any, int], str]] = {
    "in a dictionary": lambda loss, count: json.dumps({"loss": loss, "count": count, "run": "a", "last": None}),
    "by its name": lambda loss, count: dumps([{"loss": (loss, count)}]),
    "indented": lambda loss, count: json.dumps({"b": loss, "a": [count, loss]}, indent=2, sort_keys=True),
    "alone": lambda loss, count: json.dumps(loss),
    "not finite": lambda loss, count: json.dumps([loss * float("inf"), loss * float("nan")]),
    "not of ASCII": lambda loss, count: json.dumps({"é": loss}, ensure_ascii=False),
    "an encoder": lambda loss, count: ENCODER.encode({"z": loss, "a": count}),
    "of objects": lambda loss, count: json.dumps({"record": Record(loss)}, default=vars),
    "a class": lambda loss, count: json.dumps({"record": Record(loss), "count": count}, cls=Encoder),
    "a line": lambda loss, count: json.dumps({"loss": loss}, separators=(",", ":")) + "\n",
}


def compared(write: Callable[[Any, int], Any], calls: int = 5) -> Any:
    """Compare a step, eager and compiled. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        weight = torch.zeros(2)

        def step(x: torch.Tensor) -> Any:
            weight.add_(x)  # noqa: B023
            return write(weight.mean().item() / 3, int(weight.sum().item()))  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        found.append([run(torch.ones(2) + number) for number in range(calls)])
    assert found[0] == found[1]
    return run


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_are_those_of_each_run(name: str) -> None:
    before = json.JSONEncoder.encode, json.JSONEncoder.iterencode, dict(vars(ENCODER))
    stats = compared(WRITTEN[name]).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats
    assert (json.JSONEncoder.encode, json.JSONEncoder.iterencode, vars(ENCODER)) == before


def test_truth_values_are_written_as_json_does() -> None:
    compared(lambda loss, count: json.dumps({"is_high": loss > 1}))


def test_numbers_that_json_refuses_are_refused() -> None:
    compared(lambda loss, count: json.dumps(loss, allow_nan=False))
    with pytest.raises(ValueError, match="not JSON compliant"):
        compared(lambda loss, count: json.dumps(loss * float("inf"), allow_nan=False))


def _dumped(loss: Any, _: int) -> str:
    file = io.StringIO()
    json.dump({"loss": loss}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (_dumped, "in parts"),
        (lambda loss, _: "".join(ENCODER.iterencode([loss])), "in parts"),
        (lambda loss, _: len(json.dumps([loss])), "looks into a text"),
        (lambda loss, _: json.loads(json.dumps([loss])), "looks into a text"),
        (lambda loss, _: float(f"{loss:.2f}"), "looks into a text"),
    ],
    ids=["dump", "iterencode", "measured", "read again", "another text read again"],
)
def test_other_uses_are_refused_by_name(write: Callable[[Any, int], Any], match: str) -> None:
    with pytest.raises(DovetailError, match=match) as caught:
        compared(write)
    assert "test_json.py" in str(caught.value)
