"""What is done around the program of a training step: results to hand out, gradients to leave, numbers to write back.

Positions (`slot`) count the outputs of the program; `input` counts the tensors that the step was recorded with.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Look:
    """What a tensor of a program's is in eager mode besides its data.

    graph: the name of the node that made it where it is part of a graph of autograd, else "". is_new_leaf: it requires
    a gradient and is part of none. is_parameter: it is a parameter.
    """

    graph: str = ""
    is_new_leaf: bool = False
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class MadeResult:
    """A result that the program computes. Results of one slot are one tensor object."""

    slot: int
    look: Look = Look()


@dataclass(frozen=True, slots=True)
class SameObject:
    """A result that is a tensor object which the step was recorded with."""

    input: int


@dataclass(frozen=True, slots=True)
class PlainResult:
    """A result that is the same in every call."""

    value: object


@dataclass(frozen=True, slots=True)
class TextResult:
    """A text with parts that the program computes.

    parts: texts, and numbers of values that are left for the outside, each with what makes a text of it.
    """

    parts: tuple[str | tuple[int, Callable[[Any], str]], ...]

    def made(self, left: Sequence[Any]) -> str:
        """The text of one run. left: what the program has left."""
        return "".join(part if isinstance(part, str) else part[1](left[part[0]]) for part in self.parts)


Result: TypeAlias = "MadeResult | SameObject | PlainResult | TextResult"


class GradientExit(enum.Enum):
    """What a leaf's `.grad` is after the step, apart from a new tensor."""

    SAME = "the tensor that it was before"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class LeafGradient:
    """The `.grad` of one tensor.

    had: whether there was one before the step. is_cleared: the step drops what was there without looking at it. exit:
    an output, or what happens instead. is_first: it drops it before it asks about any number. look: of an output with
    a graph.
    """

    input: int
    had: bool
    is_cleared: bool
    exit: int | GradientExit
    is_first: bool = False
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """See the module docstring.

    results: in the order of the flat results. gradients: of leaves. flags: tensors whose `requires_grad` is another
    one afterwards. left: values that are written to Python objects or handed to Python functions afterwards. written:
    tensors whose contents the program replaces. aliases: outputs that another output, or an input, is as well, and of
    which the caller gets another tensor object in the same memory.
    """

    results: tuple[Result, ...] = ()
    gradients: tuple[LeafGradient, ...] = ()
    flags: tuple[tuple[int, bool], ...] = ()
    left: tuple[int | PlainResult, ...] = ()
    written: tuple[int, ...] = ()
    aliases: tuple[int, ...] = ()


def moved_plan(plan: StepPlan, moved: Mapping[int, int]) -> StepPlan:
    """The plan for tensors that are numbered otherwise. moved: by old number, for those that are still there."""

    def result(found: Result) -> Result:
        return SameObject(moved[found.input]) if isinstance(found, SameObject) else found

    return replace(
        plan,
        results=tuple(map(result, plan.results)),
        gradients=tuple(replace(gradient, input=moved[gradient.input]) for gradient in plan.gradients),
        flags=tuple((moved[index], flag) for index, flag in plan.flags),
        written=tuple(moved[index] for index in plan.written),
    )
