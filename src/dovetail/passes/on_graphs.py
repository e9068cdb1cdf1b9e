"""What makes functions on `torch.fx.GraphModule` of a pass: `X(gm, *sample_inputs)`, and `plan_X`, its report alone.

A function over a lifted graph says what the pass does:

    @on_graphs
    def tidy(lifted: Lifted) -> Rewrite[TidyReport]:
        program, report = tidy_program(lifted.program)
        return Rewrite(lambda: lower(lifted, program), lambda: report)

    plan_tidy = tidy.plan

The graph is read once for both, and nothing of it is edited.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, TypeVar

import torch
from torch import fx

from dovetail.analysis.infer import MetaInference
from dovetail.ir.fx_attributes import attribute_of
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Program
from dovetail.ir.signature import Constant
from dovetail.passes.collection import collection_paused

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rewrite(Generic[R]):
    """What a pass does with a graph. made: gives the new module. report: gives the report."""

    made: Callable[[], fx.GraphModule]
    report: Callable[[], R]


class OnGraphs(Generic[R]):
    """A pass on graph modules: called with one and samples, it gives a new one."""

    def __init__(self, run: Callable[..., Rewrite[R]]) -> None:
        """run: says what the pass does with a lifted graph; its keyword arguments are those of the functions."""
        self._run = run
        update_wrapper(self, run)
        self.plan: Callable[..., R] = self._plan_function()
        self.__signature__ = self._signature(fx.GraphModule)

    @collection_paused()
    def __call__(self, gm: fx.GraphModule, *sample_inputs: object, **options: Any) -> fx.GraphModule:
        """The new module; see the pass."""
        return self._run(lift(gm, sample_inputs), **options).made()

    def _plan_function(self) -> Callable[..., R]:
        name = getattr(self._run, "__name__", "pass")

        @collection_paused()
        def plan(gm: fx.GraphModule, *sample_inputs: object, **options: Any) -> R:
            return self._run(lift(gm, sample_inputs), **options).report()

        plan.__name__ = plan.__qualname__ = "plan_inplace" if name == "reinplace" else f"plan_{name}"
        plan.__module__ = self._run.__module__
        plan.__doc__ = f"What `{name}` does with these arguments, with reasons."
        plan.__signature__ = self._signature(object)  # type: ignore[attr-defined]
        return plan

    def _signature(self, returned: type) -> inspect.Signature:
        _, *options = inspect.signature(self._run).parameters.values()
        kinds = inspect.Parameter
        graph = kinds("gm", kinds.POSITIONAL_OR_KEYWORD, annotation=fx.GraphModule)
        samples = kinds("sample_inputs", kinds.VAR_POSITIONAL, annotation=object)
        return inspect.Signature([graph, samples, *options], return_annotation=returned)


def on_graphs(run: Callable[..., Rewrite[R]]) -> OnGraphs[R]:
    """Decorates a function from a lifted graph, and options by keyword, to what a pass does with it."""
    return OnGraphs(run)


def rewritten(lifted: Lifted, result: tuple[Program, R]) -> Rewrite[R]:
    """The rewrite by a pass on programs that gives this program and report."""
    program, report = result
    return Rewrite(lambda: lower(lifted, program), lambda: report)


def constants_of(program: Program) -> dict[str, str]:
    """The attribute that each constant input stands for, by the name of the input."""
    roles = zip(program.signature.inputs, program.inputs, strict=True)
    return {value.name: role.name for role, value in roles if isinstance(role, Constant)}


def contents_of(lifted: Lifted) -> dict[str, torch.Tensor]:
    """The tensors that the module holds, by the names of values."""
    return {name: attribute_of(lifted.module, path) for name, path in constants_of(lifted.program).items()}


def with_constants(lifted: Lifted) -> tuple[Program, Sequence[str], MetaInference]:
    """The program, the names of its constants, and what makes fakes of its descriptions."""
    program = lifted.program
    return program, tuple(constants_of(program)), MetaInference(lifted.mode, lifted.numbers())
