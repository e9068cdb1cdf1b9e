"""Both ways into the compiler, each with the graphs that it made, and the check that a compiled function is eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import dovetail
from dovetail.execute.graph import CompiledGraph
from dovetail.frontends.backend import dovetail_backend
from tests.harness.agreement import MakeInputs, first_difference, observe


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled function. graphs: gives the graphs that were compiled so far."""

    call: Callable[..., Any]
    graphs: Callable[[], tuple[CompiledGraph, ...]]


Door = Callable[..., Compiled]


def directly(target: Callable[..., Any], **options: Any) -> Compiled:
    """Compile with `dovetail.compile`."""
    compiled = dovetail.compile(target, **options)
    return Compiled(compiled, lambda: compiled.graphs)


def through_dynamo(target: Callable[..., Any], *, fullgraph: bool = True, **options: Any) -> Compiled:
    """Compile with `torch.compile` and the backend. Not fullgraph: what Dynamo does not take runs in eager mode."""
    made: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        made.append(dovetail_backend(gm, example_inputs, options=options or None))
        return made[-1]

    def graphs() -> tuple[CompiledGraph, ...]:
        return tuple(g for m in made for g in ([m] if isinstance(m, CompiledGraph) else m.graphs.graphs))

    return Compiled(torch.compile(target, backend=backend, fullgraph=fullgraph), graphs)


DOORS: tuple[Door, ...] = (directly, through_dynamo)


def assert_as_eager(
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    make_inputs: MakeInputs,
    seeds: Sequence[int] = (0, 1),
    *,
    with_counters: bool = True,
) -> None:
    """Call both with inputs of each seed, and compare everything that a caller can see."""
    for seed in seeds:
        expected = observe(function, make_inputs, seed, with_counters=with_counters)
        actual = observe(compiled, make_inputs, seed, with_counters=with_counters)
        difference = first_difference(expected, actual)
        assert difference is None, f"inputs({seed}): {difference}"
