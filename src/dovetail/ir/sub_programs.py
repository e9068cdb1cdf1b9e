"""Operators over subgraphs (`cond`, `map`, `scan`, `while_loop`) as what a primitive runs.

A subgraph is a program of its own: its inputs are what the operator hands to it, its outputs what it gives back. One
that was captured here runs as torch's graph, which eager runs; one that was read from a file runs operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.ir.program import Node, Program
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.dispatch import HigherOrder
from dovetail.torch_compat.pytree import TreeSpec, unflatten


@dataclass(frozen=True, slots=True)
class SubProgram:
    """What a subgraph does. is_bare: it gives one result by itself; else a tuple of them."""

    program: Program
    is_bare: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WithSubPrograms:
    """Runs an operator on operands, with all other arguments as they were.

    leaves: of its arguments; a subgraph is a function there. places: where the operands go. told: what each subgraph
    does, in order; None when there is one of which that is not known, for a reason.
    """

    operator: HigherOrder
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    spec: TreeSpec
    told: tuple[SubProgram, ...] | None = None
    reason: str = "what its subgraphs do was not noted"

    def __call__(self, *operands: object) -> object:
        subgraphs = [self.leaves[place] for place in self.subgraph_places()]
        turned = [sub.fresh() if hasattr(sub, "fresh") else sub for sub in subgraphs]  # how often it runs is counted
        args, kwargs = self.arguments(operands, lambda number: turned[number])
        with below_autograd():
            return self.operator(*args, **kwargs)

    def arguments(
        self, operands: tuple[object, ...], instead: Callable[[int], object] | None = None
    ) -> tuple[list[Any], Mapping[str, Any]]:
        """The arguments of the operator. instead: what stands there for a subgraph, by its number."""
        leaves = list(self.leaves)
        for place, operand in zip(self.places, operands, strict=True):
            leaves[place] = operand
        if instead is not None:
            for number, place in enumerate(self.subgraph_places()):
                leaves[place] = instead(number)
        args, kwargs = unflatten(leaves, self.spec)
        return list(args), kwargs

    def subgraph_places(self) -> list[int]:
        """The leaves that are subgraphs."""
        return [place for place, leaf in enumerate(self.leaves) if place not in self.places and callable(leaf)]


def sub_programs_of(node: Node) -> tuple[SubProgram, ...]:
    """What the subgraphs of a node do; nothing for other nodes, and where that is not known."""
    run = getattr(node.target, "run", None)
    return (run.told or ()) if isinstance(run, WithSubPrograms) else ()


def with_inner_programs(program: Program) -> Iterator[Program]:
    """A program, then those that its subgraphs are, at any depth."""
    yield program
    for node in program.nodes:
        for sub in sub_programs_of(node):
            yield from with_inner_programs(sub.program)


def with_inner_nodes(program: Program) -> Iterator[Node]:
    """The nodes of a program, then those of its subgraphs, at any depth."""
    for part in with_inner_programs(program):
        yield from part.nodes
