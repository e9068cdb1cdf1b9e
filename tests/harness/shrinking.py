"""Make a failing random program smaller while it still fails in the same way.

Source: delta debugging, Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), one element
at a time: programs are short. Cost: O(lines^2) checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tests.harness import aliasing, programs
from tests.harness.aliasing import AliasProgram
from tests.harness.functional_programs import FunctionalProgram, is_functional
from tests.harness.placement import Pattern
from tests.harness.programs import RandomProgram

AnyProgram = TypeVar("AnyProgram", RandomProgram, AliasProgram, FunctionalProgram)
_Item = TypeVar("_Item")

_NO_GRAD = "with torch.no_grad():\n    "


def shrink_program(program: AnyProgram, fails: Callable[[AnyProgram], bool]) -> AnyProgram:
    """A program from which nothing more can be left out such that `fails` stays true.

    fails: whether a program shows the failure; asked only for programs that eager runs.
    """
    while True:
        smaller = next((p for p in _smaller(program) if _runs_in_eager(p) and fails(p)), None)
        if smaller is None:
            return program
        program = smaller


def _runs_in_eager(program: RandomProgram | AliasProgram | FunctionalProgram) -> bool:
    if isinstance(program, FunctionalProgram):
        return is_functional(program)
    if isinstance(program, AliasProgram):
        return aliasing.runs_in_eager(program)
    return programs.runs_in_eager(program)


def _smaller(program: AnyProgram) -> Iterator[AnyProgram]:
    """Programs with one thing less: a line (last first), a result, an input, a turn in how inputs are made."""
    for place in reversed(range(len(program.body))):
        yield replace(program, body=_without(program.body, place))
    if len(program.returns) > 1:
        for place in range(len(program.returns)):
            yield replace(program, returns=_without(program.returns, place))
    if isinstance(program, AliasProgram):
        yield from _with_less_in_patterns(program)
    elif isinstance(program, FunctionalProgram):
        yield from _with_less_given(program)
    else:
        for name in program.arguments:
            yield _without_input(program, name)
    for place, line in enumerate(program.body):
        if line.startswith(_NO_GRAD):
            yield replace(program, body=_with(program.body, place, line.removeprefix(_NO_GRAD)))
    if isinstance(program, RandomProgram):
        yield from _with_plain_inputs(program)


def _with_less_given(program: FunctionalProgram) -> Iterator[FunctionalProgram]:
    """Without a donation, an argument, a line that makes one; with an operand in place of a result."""
    for place in range(len(program.donated)):
        yield replace(program, donated=_without(program.donated, place))
    for place, name in enumerate(program.arguments):
        donated = tuple(other for other in program.donated if other != name)
        yield replace(program, arguments=_without(program.arguments, place), donated=donated)
    made = [line.split(" ")[0] for line in program.inputs]
    for place, name in enumerate(made):
        if name not in program.arguments and not any(f"= {name}." in line for line in program.inputs):
            yield replace(program, inputs=_without(program.inputs, place))
    for place, line in enumerate(program.body):
        results, _, call = line.partition(" = ")
        for result in re.findall(r"\bv\d+\b", results if call else ""):
            for operand in dict.fromkeys(re.findall(r"\b[vx]\d+\b", call)):
                later = (*program.body[place + 1 :], *program.returns)
                swapped = tuple(re.sub(rf"\b{result}\b", operand, text) for text in later)
                body, returns = swapped[: -len(program.returns)], swapped[-len(program.returns) :]
                if swapped != later:
                    yield replace(program, body=(*program.body[:place], *body), returns=returns)


def _with_less_in_patterns(program: AliasProgram) -> Iterator[AliasProgram]:
    """Without a pattern, an argument (the line that makes it may be needed for another), or such a line."""
    if len(program.patterns) > 1:
        for place in range(len(program.patterns)):
            yield replace(program, patterns=_without(program.patterns, place))
    for place in range(len(program.arguments)):
        yield replace(program, arguments=_without(program.arguments, place))
    for number, pattern in enumerate(program.patterns):
        for place, line in enumerate(pattern.lines):
            name = line.split(" ")[0]
            if name not in program.arguments:
                leaves = tuple(leaf for leaf in pattern.leaves if leaf != name)
                less = Pattern(pattern.kind, _without(pattern.lines, place), leaves)
                yield replace(program, patterns=_with(program.patterns, number, less))


def _with_plain_inputs(program: RandomProgram) -> Iterator[RandomProgram]:
    for place, line in enumerate(program.inputs):
        for layout in (".permute(1, 0)", "[..., ::2]", "[1 : ", ".detach().requires_grad_()"):
            if layout in line:
                stop = (
                    line.index("]", line.index(layout)) + 1 if layout == "[1 : " else line.index(layout) + len(layout)
                )
                plain = line[: line.index(layout)] + line[stop:]
                yield replace(program, inputs=_with(program.inputs, place, plain))


def _without_input(program: RandomProgram, name: str) -> RandomProgram:
    leaf = name.replace("x", "leaf")
    return replace(
        program,
        inputs=tuple(line for line in program.inputs if line.split(" ")[0] not in (name, leaf)),
        arguments=tuple(argument for argument in program.arguments if argument != name),
        leaves=tuple(other for other in program.leaves if other not in (name, leaf)),
    )


def _without(items: tuple[_Item, ...], place: int) -> tuple[_Item, ...]:
    return (*items[:place], *items[place + 1 :])


def _with(items: tuple[_Item, ...], place: int, item: _Item) -> tuple[_Item, ...]:
    return (*items[:place], item, *items[place + 1 :])
