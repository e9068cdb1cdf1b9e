"""Make a failing random program smaller while it still fails in the same way.

Source: delta debugging, Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), one element
at a time: programs are short. Cost: O(lines^2) checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from dovetail.testing.programs import RandomProgram, runs_in_eager

Fails: TypeAlias = Callable[[RandomProgram], bool]


def shrink_program(program: RandomProgram, fails: Fails) -> RandomProgram:
    """A program from which nothing more can be left out such that `fails` stays true.

    fails: whether a program shows the failure; asked only for programs that eager runs.
    """
    while True:
        smaller = next((p for p in _smaller(program) if runs_in_eager(p) and fails(p)), None)
        if smaller is None:
            return program
        program = smaller


def _smaller(program: RandomProgram) -> Iterator[RandomProgram]:
    """Programs with one thing less: a line (last first), a result, an input."""
    for place in reversed(range(len(program.body))):
        yield replace(program, body=_without(program.body, place))
    if len(program.returns) > 1:
        for place in range(len(program.returns)):
            yield replace(program, returns=_without(program.returns, place))
    for name in program.arguments:
        yield _without_input(program, name)
    for place, line in enumerate(program.body):
        if line.startswith("with torch.no_grad():\n    "):
            plain = line.removeprefix("with torch.no_grad():\n    ")
            yield replace(program, body=(*program.body[:place], plain, *program.body[place + 1 :]))
    for place, line in enumerate(program.inputs):
        for layout in (".permute(1, 0)", "[..., ::2]", "[1 : ", ".detach().requires_grad_()"):
            if layout in line:
                stop = (
                    line.index("]", line.index(layout)) + 1 if layout == "[1 : " else line.index(layout) + len(layout)
                )
                plain = line[: line.index(layout)] + line[stop:]
                yield replace(program, inputs=(*program.inputs[:place], plain, *program.inputs[place + 1 :]))


def _without_input(program: RandomProgram, name: str) -> RandomProgram:
    leaf = name.replace("x", "leaf")
    return replace(
        program,
        inputs=tuple(line for line in program.inputs if line.split(" ")[0] not in (name, leaf)),
        arguments=tuple(argument for argument in program.arguments if argument != name),
        leaves=tuple(other for other in program.leaves if other not in (name, leaf)),
    )


def _without(items: tuple[str, ...], place: int) -> tuple[str, ...]:
    return (*items[:place], *items[place + 1 :])
