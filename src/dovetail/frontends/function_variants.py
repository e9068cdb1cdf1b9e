"""Programs of a compiled function: what runs one, and how calls of one kind that come again find theirs in one go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dovetail.errors import DovetailError
from dovetail.execute.graph import CompiledGraph
from dovetail.frontends.call_guard import CallGuard, QuickInputs
from dovetail.frontends.structure import Structure
from dovetail.frontends.variant_cache import Variant
from dovetail.pipeline.alias_graphs import AliasGraphs


@dataclass(frozen=True, slots=True)
class FunctionRunner:
    """Runs a function for one kind of call. output_spec: how results are put together."""

    graphs: AliasGraphs
    output_spec: Structure


FunctionVariant: TypeAlias = Variant[CallGuard, FunctionRunner]
Chosen: TypeAlias = tuple[FunctionVariant, CompiledGraph, Sequence[Any]]
Ready: TypeAlias = tuple[CompiledGraph, Sequence[Any], Structure]


@dataclass(frozen=True, slots=True)
class QuickCall:
    """Calls of one kind that come again and again: inputs are found in one go."""

    variant: FunctionVariant
    inputs: QuickInputs

    def ready(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ready | None:
        """What runs a call, and with what; None for one of which the guard has to tell."""
        taken = self.inputs(args, kwargs)
        if taken is None:
            return None
        runner, known = self.variant.runner, self.variant.guard.fact_count
        if (graph := runner.graphs.only) is None:
            try:
                chosen = runner.graphs.select(taken)
            except DovetailError:  # which is met again by who asks the guard
                return None
            if chosen is None or self.variant.guard.fact_count != known:
                return None
            graph, taken = chosen
        return graph, taken, runner.output_spec
