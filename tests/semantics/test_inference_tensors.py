"""Tensors made in inference mode may not be written outside it: every door raises what eager mode raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import DovetailError

with torch.inference_mode():
    MADE = torch.ones(3)

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda x: MADE.add_(x * 2),
    "an element": lambda x: MADE.__setitem__(0, 1.0),
    "a view": lambda x: MADE[1:].mul_(2),
    "out": lambda x: torch.add(x, 1, out=MADE),
    "an argument": lambda x: x.add_(1),
    "a part of an argument": lambda x: x[:1].zero_(),
}
DOORS: dict[str, Callable[..., Any]] = {
    "step": dovetail.compile_step,
    "compile": dovetail.compile,
    "backend": lambda f: torch.compile(f, backend="dovetail"),
}


def _error(call: Callable[[], Any]) -> str:
    """What a call raises; of an error that was raised while recording, its cause."""
    with pytest.raises((RuntimeError, DovetailError)) as raised:
        call()
    error: BaseException = raised.value
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", WRITES)
def test_writes_outside_inference_mode_raise(name: str, door: str) -> None:
    def function(x: Tensor) -> Tensor:
        WRITES[name](x)
        return x + 1

    torch.compiler.reset()
    with torch.inference_mode():
        given = torch.ones(3)
    compiled = DOORS[door](function)
    for x in (given, given) if "argument" in name else (torch.ones(3), torch.ones(3)):
        expected = _error(lambda x=x: function(x))  # type: ignore[misc]
        assert _error(lambda x=x: compiled(x)) == expected  # type: ignore[misc]


@pytest.mark.parametrize("door", ["step", "compile"])
def test_writes_inside_inference_mode_are_made(door: str) -> None:
    def function(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    seen = []
    for run in (function, DOORS[door](function)):
        with torch.inference_mode():
            x = torch.ones(3)
            seen.append([run(x).tolist() for _ in range(3)] + [x.tolist()])
    assert seen[0] == seen[1]
