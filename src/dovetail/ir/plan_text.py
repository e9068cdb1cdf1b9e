"""Where the results of a call come from, in words: of compiled functions and of steps alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.ir.calling import (
    Formatted,
    FromConstant,
    FromInput,
    FromOutput,
    FromView,
    OutputRule,
    Rebuilt,
    ReplayStep,
    WithLook,
    innermost,
)


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """Where one result comes from.

    kind: "constant", "fresh", "input", "view of input", "view of intermediate", "same as output", "wrapper", or "text".
    base: the input, output or intermediate that it is (a view of). views: the operators that lead from the base to it.
    """

    kind: str
    base: str = ""
    views: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.kind} {self.base}" if self.base else self.kind
        return f"{text} by {', '.join(self.views)}" if self.views else text


def origin_of(rule: OutputRule, inputs: Sequence[str], outputs: Sequence[str] = ()) -> ResultOrigin:
    """Where the result of a rule comes from. inputs, outputs: what to call those of the plan."""
    rule = innermost(rule.of if isinstance(rule, WithLook) and isinstance(rule.of, FromView) else rule)
    if isinstance(rule, FromView):
        names, what = (inputs, "input") if rule.of_input else (outputs, "intermediate")
        return ResultOrigin(f"view of {what}", names[rule.base], tuple(map(_named, rule.steps)))
    if isinstance(rule, FromInput):
        return ResultOrigin("input", inputs[rule.input])
    if isinstance(rule, FromOutput):
        return ResultOrigin("same as output", str(rule.output))
    if isinstance(rule, FromConstant):
        return ResultOrigin("constant", repr(rule.value))
    if isinstance(rule, Rebuilt):
        return ResultOrigin("wrapper", rule.layout.cls.__name__)
    return ResultOrigin("text" if isinstance(rule, Formatted) else "fresh")


def _named(step: ReplayStep) -> str:
    return str(step.target) if step.index is None else f"{step.target}[{step.index}]"
