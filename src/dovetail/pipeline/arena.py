"""Code for programs: in an arena where that is asked for, else as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail.execute.arena import ArenaProgram
from dovetail.execute.compiled import AfterNode, CompiledProgram
from dovetail.execute.needs import Needs
from dovetail.execute.placed_trials import try_places
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.memory.in_arena import ArenaPlan, placeables, plan_in_arena
from dovetail.pipeline.options import Options


def code_of(
    program: Program,
    executors: ExecutorList,
    options: Options,
    hints: Mapping[str, Number],
    after: Mapping[Node, AfterNode] | None = None,
    dying: Collection[int] = (),
) -> CompiledProgram | ArenaProgram:
    """The code of a program.

    hints: a number for each size symbol. after: by a node, what is called with its result. dying: numbers of inputs
    that nobody else holds.
    """
    plan = arena_plan(program, hints, dying) if options.arena else None
    if plan is None:
        return CompiledProgram(program, executors, after or {}, dying)
    return ArenaProgram(program, plan, executors, after)


def arena_plan(program: Program, hints: Mapping[str, Number], dying: Collection[int] = ()) -> ArenaPlan:
    """What of a program can lie in an arena without a higher peak, and where."""
    usable, needs = try_places(program, hints, Needs(hints), placeables(program, hints))
    return plan_in_arena(program, hints, needs.need_of, usable, dying=dying)
