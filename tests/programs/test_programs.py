"""Programs in the style of public scripts do through every door what they do in eager mode, bit by bit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.programs.harness import BACKEND, COMPILE, STEP, Differs, Made, Program, Refused, Wrap, check, some
from tests.rotation import rotated

THEMES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("harness", "test_programs")
)

# Refused by name: doors, programs, the code of the error, and why.
_COMPILE, _BACKEND = (COMPILE,), (BACKEND,)
REFUSED: tuple[tuple[tuple[str, ...], tuple[str, ...], str, str], ...] = (
    (_BACKEND, ("pixels_in_order",), "DT-ALIAS-002", "`weight.data *= mask` gives a parameter other memory"),
    (_COMPILE, ("both_halves_of_a_transformer",), "DT-CAPTURE-002", "nn.Transformer asks whether a mask is causal"),
)

# Known not to agree with eager mode: doors, programs, and why.
KNOWN: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (_BACKEND, ("routed_experts_in_pieces",), "graph breaks: each piece adds up the gradients of its own reads first"),
)
_CODES = {(name, door): code for doors, names, code, _ in REFUSED for name in names for door in doors}
REASONS = {(name, door): why for doors, names, why in KNOWN for name in names for door in doors}


def programs() -> Iterator[Program]:
    """Every program, theme by theme."""
    for theme in THEMES:
        found = vars(importlib.import_module(f"tests.programs.{theme}")).values()
        yield from (item for item in found if isinstance(item, Program))


def _cases() -> Iterator[object]:
    for program in programs():
        for door in program.doors:
            why = REASONS.get((program.name, door))
            marks = [] if why is None else [pytest.mark.xfail(strict=True, reason=why)]
            yield pytest.param(program, door, id=f"{program.name}-{door}", marks=marks)


@pytest.mark.usefixtures("alone")
# Dynamo makes an instance of a Function for what it calls ctx.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("program", "door"), rotated(list(_cases()), 5))
def test_program(program: Program, door: str) -> None:
    wanted = _CODES.get((program.name, door))
    if wanted is None:
        check(program, door)
        return
    with pytest.raises(Refused) as caught:
        check(program, door)
    assert caught.value.code == wanted


def test_names_are_known() -> None:
    names = [program.name for program in programs()]
    assert len(set(names)) == len(names)
    doors = {(program.name, door) for program in programs() for door in program.doors}
    assert not (_CODES.keys() | REASONS.keys()) - doors


def _uneven(returns: bool) -> Program:
    """A program whose sides differ: the second one gives another result, or leaves another number."""
    sides = iter((0.0, 1.0))

    def make(wrap: Wrap) -> Made:
        extra = next(sides)
        model, seen = nn.Linear(2, 2), {"shift": 0.0}
        net = wrap(model)

        def step(x: Tensor) -> Tensor:
            seen["shift"] = 0.0 if returns else extra
            return net(x).detach() + (extra if returns else 0.0)

        return Made(step, some(lambda: torch.ones(1, 2)), {"model": model, "seen": seen})

    return Program("uneven", make, (STEP,), 3)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("returns", "where"), [(True, "result"), (False, "shift")])
def test_a_difference_is_found(returns: bool, where: str) -> None:
    with pytest.raises(Differs, match=where):
        check(_uneven(returns), STEP)
