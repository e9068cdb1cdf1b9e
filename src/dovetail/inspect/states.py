"""The whole program at each step of a compilation, run on the same inputs so that results can be compared.

Before the split a state is one program; after it, two halves that pass values as the runtime does. Results are
identified by their role (`UserOutput(0)`, `Gradient(1)`), which stay the same from the first step to the last. Of a
whole training step, which is one program all the way, what it leaves in its inputs counts as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.dump_folder import Compilation, DumpedCall, DumpedStep
from dovetail.inspect.plain_run import Difference, compare, in_float64, run_program, widened
from dovetail.ir.program import Program
from dovetail.ir.signature import HeldGradient, InputMutation, InputRole, NumberInput, Residual, StateTensor
from dovetail.pipeline.differential import sample_inputs, without_questions
from dovetail.pipeline.dump import BACKWARD, FORWARD, JOINT


@dataclass(frozen=True, slots=True)
class State:
    """The whole program after a step.

    programs: one, or forward and backward. executors: None to run operators by their full names.
    """

    step: str
    programs: tuple[Program, ...]
    executors: ExecutorList | None = None

    @property
    def nodes(self) -> int:
        """How many there are in all."""
        return sum(len(program.nodes) for program in self.programs)


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """What a state runs on. values: inputs by name. is_recorded: whether they are those of a real call."""

    values: Mapping[str, Any]
    state: torch.Tensor | None
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a state gives.

    results: by role, as text. values: by name, where they were asked for. error: of what failed, if anything did.
    """

    results: dict[str, Any]
    values: dict[str, Any]
    error: str = ""


def states_of(compilation: Compilation, executors: ExecutorList | None = None) -> list[State]:
    """The states in order. executors: add the code that these make of the last one, if they are given.

    A recorded program whose results cannot be compared, as its dump says, is left out.
    """
    joint = compilation.of_part(JOINT)
    comparable = all(step.facts.get("comparable", True) for step in joint)
    states = [State(step.name, (_program(step),)) for step in joint if comparable or step.name != "recorded"]
    halves: dict[str, Program] = {}
    for step in compilation.steps:
        if step.part != JOINT and step.program is not None:
            halves[step.part] = step.program
            if len(halves) == 2:
                states.append(State(step.name, (halves[FORWARD], halves[BACKWARD])))
    if executors is not None and states:
        states.append(replace(states[-1], step="code", executors=executors))
    return states


def replay_inputs_of(compilation: Compilation, states: list[State]) -> ReplayInputs:
    """Inputs for the states of a compilation: of the calls that were kept, random ones for what these lack."""
    first = states[0].programs[0]
    hints = next(step.hints for step in compilation.steps if step.program is not None)
    values = dict(zip([value.name for value in first.inputs], random_inputs(first, hints), strict=True))
    names = {step.part: [v.name for v in _program(step).inputs] for step in compilation.steps if step.program}
    calls: Mapping[str, DumpedCall] = compilation.calls
    for part, call in calls.items():
        given = zip(names.get(part, ()), call.inputs, strict=False)
        values.update((name, item) for name, item in given if name in values)
    forward = calls.get(JOINT, calls.get(FORWARD))
    if forward is None:
        for role, value in zip(first.signature.inputs, first.inputs, strict=True):
            values[value.name] = _likely(role, values[value.name], is_step(first))
    return ReplayInputs(values, None if forward is None else forward.state, forward is not None)


def _likely(role: InputRole, item: Any, is_of_step: bool) -> Any:
    """What the state of a step may hold: moments and counts of steps are not negative, rates and decays below 1."""
    if isinstance(role, NumberInput):
        return 0.5
    return item.abs() if is_of_step and isinstance(item, torch.Tensor) and item.is_floating_point() else item


def series_of(compilation: Compilation) -> list[Compilation]:
    """The compilation in parts whose programs take the same inputs: folding and packing give a frozen one others."""
    found: list[list[DumpedStep]] = []
    known: set[str] = set()
    for step in compilation.steps:
        if step.program is not None:
            pairs = zip(step.program.signature.inputs, step.program.inputs, strict=True)
            names = {value.name for role, value in pairs if not isinstance(role, Residual)}
            if not found or (names - known and step.part != BACKWARD):
                found.append([])
                known = names
        if found:
            found[-1].append(step)
    if len(found) <= 1:
        return [compilation]
    return [replace(compilation, steps=tuple(steps)) for steps in found]


def is_step(program: Program) -> bool:
    """Whether it is a whole training step."""
    return any(isinstance(role, StateTensor | HeldGradient | NumberInput) for role in program.signature.inputs)


def run_state(state: State, given: ReplayInputs, *, keep: bool = False, wide: bool = False) -> Outcome:
    """Run a state. keep: keep every value. wide: in float64. An error becomes the outcome's."""
    results: dict[str, Any] = {}
    values: dict[str, Any] = {}
    handed: dict[str, Any] = {}
    drawn: list[torch.Tensor] = [] if given.state is None else [given.state]  # backward draws after forward
    try:
        for program in state.programs:
            roles = program.signature.inputs
            inputs = [
                handed[role.name] if isinstance(role, Residual) else given.values[value.name]
                for role, value in zip(roles, program.inputs, strict=True)
            ]
            if is_step(program) and not given.is_recorded:
                program = without_questions(program)
            if wide:
                program, inputs = in_float64(program), widened(inputs)
            kept, left = values if keep else None, list[Any]()
            began = drawn[0] if drawn else None
            outputs = run_program(
                program, inputs, state=began, keep=kept, left=left, left_state=drawn, executors=state.executors
            )
            if is_step(program):
                results.update((f"input {value.name}", x) for value, x in zip(program.inputs, left, strict=True))
            for role, result in zip(program.signature.outputs, outputs, strict=True):
                if isinstance(role, Residual):
                    handed[role.name] = result
                elif is_step(program) and isinstance(role, InputMutation):
                    results[f"input {program.inputs[role.input].name}"] = result
                else:
                    results[str(role)] = result
    except Exception as error:  # whatever an operator raises is the finding
        return Outcome(results, values, f"{type(error).__name__}: {error}")
    return Outcome(results, values)


def difference(expected: Outcome, actual: Outcome, rtol: float | None = None) -> tuple[str, Difference] | None:
    """The first result that differs, by role; an error of the second is a difference unless the first had the same."""
    if expected.error or actual.error:
        return None if expected.error == actual.error else ("the run", Difference(actual.error or "does not fail"))
    for role, result in expected.results.items():
        if role not in actual.results:
            return role, Difference("is missing")
        found = compare(result, actual.results[role], rtol)
        if found is not None:
            return role, found
    return None


def random_inputs(program: Program, hints: Mapping[str, Any]) -> list[Any]:
    """Random inputs of a program; numbers that serve as an index are 0 where 1 is too much.

    Raises: NoSampleInputs.
    """
    inputs = sample_inputs(program, hints)
    try:
        run_program(program, inputs)
    except Exception:  # whatever an operator raises: the program may be wrong
        return sample_inputs(program, hints, 0)
    return inputs


def _program(step: DumpedStep) -> Program:
    assert step.program is not None, "steps without one are left out"
    return step.program
