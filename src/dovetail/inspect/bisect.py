"""Find the step of a compilation, and the node, from which on results differ from what was recorded.

Steps are searched by halves: each run is of a whole program, plainly, operator by operator. Where a step and the one
before differ, both run once more with every value kept; values keep their names from step to step, so the culprit is a
node whose result differs although everything that it reads is alike, and whose difference reaches a result.

Cost: log2(steps) + 5 runs, each with copies of its inputs; two of them keep every value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dovetail.execute.executors.checked import with_checks
from dovetail.execute.protocol import Executor, ExecutorList
from dovetail.inspect.dump_folder import Compilation, read_dump
from dovetail.inspect.plain_run import Difference, compare, largest_error
from dovetail.inspect.replay import DIFFERS, FAILED, replay_calls
from dovetail.inspect.states import (
    Outcome,
    ReplayInputs,
    State,
    difference,
    replay_inputs_of,
    run_state,
    series_of,
    states_of,
)
from dovetail.ir.program import Node, Value, values_in
from dovetail.ir.text import Names, plain_call
from dovetail.ops.facts import written_values
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.options import Options

_CALL_DIFFERS = "but the {call}. Other code ran it: pass its executors to bisect, too"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The node that makes the first difference.

    node: as text. value: name of its result. origin: the user's line. error_before, error_after: largest distance of
    its result to that of a run in float64, before and after the step; None where that says nothing. executor: who runs
    it and how, where the step is the generated code.
    """

    node: str
    value: str
    origin: str
    difference: Difference
    error_before: float | None = None
    error_after: float | None = None
    executor: str = ""

    def __str__(self) -> str:
        lines = [f"node      {self.node}", f"          {self.value} {self.difference}"]
        lines += [f"run by    {self.executor}"] if self.executor else []
        lines += [f"from      {self.origin}"] if self.origin else []
        if self.error_before is not None and self.error_after is not None:
            lines.append(
                f"float64   off by {self.error_before:.3g} before the step, by {self.error_after:.3g} after it"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class BisectReport:
    """What was found in one compilation. step: the first one whose results differ; None when all agree.

    before: the step before it. result: role of the first result that differs. culprit: None where no node can be named.
    call: where all steps agree, how a recorded call gave something else. steps, runs: how many there are, and were.
    is_recorded: whether inputs are those of a real call, or random.
    """

    compilation: str
    steps: int
    runs: int
    is_recorded: bool
    step: str | None = None
    before: str = ""
    result: str = ""
    difference: Difference | None = None
    culprit: Culprit | None = None
    call: str = ""

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return self.step is not None or bool(self.call)

    def __str__(self) -> str:
        on = "the inputs of the first call" if self.is_recorded else "random inputs"
        if self.step is None:
            agree = f"{self.compilation}: all {self.steps} steps agree, on {on} ({self.runs} runs)"
            return f"{agree}\n  {_CALL_DIFFERS.format(call=self.call)}" if self.call else agree
        lines = [
            f"{self.compilation}: step {self.step} differs from {self.before}, on {on} ({self.runs} runs)",
            f"result    {self.result} {self.difference}",
        ]
        lines.append(str(self.culprit) if self.culprit is not None else "node      none with a name in both steps")
        return "\n  ".join("\n".join(lines).splitlines())


def report_to_json(report: BisectReport) -> dict[str, object]:
    """The report as data for JSON."""
    facts = asdict(report)
    for holder in (facts, facts["culprit"] or {}):
        if holder.get("difference") is not None:
            holder["difference"] = {**holder["difference"], "largest": _finite(holder["difference"]["largest"])}
        holder.update({name: _finite(holder[name]) for name in ("error_before", "error_after") if name in holder})
    return facts


def _finite(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)


def bisect(
    path: str | Path,
    *,
    rtol: float | None = None,
    executors: Sequence[str | Executor] | None = None,
    progress: Callable[[str], None] | None = None,
    allow: Iterable[str] = (),
) -> list[BisectReport]:
    """For each compilation in a dump, the first step and node that differs.

    path: a folder that DOVETAIL_DUMP wrote; with DOVETAIL_DUMP_CALLS it holds real inputs. rtol: how much may differ,
    relative to the largest element; nothing when not given. executors: also look at the code that they make, as
    `dovetail.compile` takes them; none means dovetail's own. progress: told what is being run. allow: operators
    of other packages that the programs may call, as in `dovetail.load`.
    Raises: BadArtifact for another folder.
    """
    found = []
    claiming = None if executors is None else with_checks(make_executors(Options(executors=tuple(executors))))
    for compilation in (series for whole in read_dump(path, allow=allow) for series in series_of(whole)):
        states = states_of(compilation, claiming)
        if states:
            found.append(bisect_states(compilation, states, rtol, progress))
    return found


def bisect_states(
    compilation: Compilation,
    states: list[State],
    rtol: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> BisectReport:
    """As `bisect`, for the states of one compilation, of which the first one is right."""
    search = _Search(replay_inputs_of(compilation, states), rtol, progress or (lambda text: None))
    name = compilation.folder.name
    expected = search.run(states[0])
    good, bad = 0, len(states) - 1
    found = search.differs(expected, states[bad])
    if found is None:
        call = _call_that_differs(compilation, states[-1], rtol)
        return BisectReport(name, len(states), search.runs, search.inputs.is_recorded, call=call)
    while bad - good > 1:
        middle = (good + bad) // 2
        here = search.differs(expected, states[middle])
        good, bad, found = (middle, bad, found) if here is None else (good, middle, here)
    culprit = search.culprit(states[good], states[bad])
    role, what = found
    return BisectReport(
        name, len(states), search.runs, search.inputs.is_recorded,
        states[bad].step, states[good].step, role, what, culprit,
    )  # fmt: skip


def _call_that_differs(compilation: Compilation, last: State, rtol: float | None) -> str:
    """How a recorded call gave something else than the last state; empty where none did."""
    rows = replay_calls(compilation, last, rtol)
    return next(
        (f"{row.step} gave another result: {row.detail}" for row in rows if row.verdict in (DIFFERS, FAILED)), ""
    )


class _Search:
    def __init__(self, inputs: ReplayInputs, rtol: float | None, progress: Callable[[str], None]) -> None:
        self.inputs = inputs
        self.rtol = rtol
        self.runs = 0
        self._progress = progress

    def run(self, state: State, *, keep: bool = False, wide: bool = False) -> Outcome:
        """Run a state, and count it."""
        self.runs += 1
        self._progress(f"{state.step}{', every value' if keep else ''}{', in float64' if wide else ''}")
        return run_state(state, self.inputs, keep=keep, wide=wide)

    def differs(self, expected: Outcome, state: State) -> tuple[str, Difference] | None:
        """Whether a state gives something else."""
        return difference(expected, self.run(state), self.rtol)

    def culprit(self, before: State, after: State) -> Culprit | None:
        """The node of `after` that makes the difference."""
        old, new = self.run(before, keep=True), self.run(after, keep=True)
        both = [name for name in new.values if name in old.values]
        compared = {name: compare(old.values[name], new.values[name], self.rtol) for name in both}
        node, value = _first_cause(after, compared)
        if node is None and new.error:
            node, value = _where_it_failed(after, new), None
        if node is None:
            return None
        wide = self.run(before, keep=True, wide=True)
        name = "" if value is None else value.name
        return Culprit(
            node=_node_text(node),
            value=name,
            origin=str(node.origin),
            difference=compared.get(name) or Difference(new.error),
            error_before=_error(wide, old, name),
            error_after=_error(wide, new, name),
            executor="" if after.executors is None else _run_by(after.executors, node),
        )


def _first_cause(state: State, compared: Mapping[str, Difference | None]) -> tuple[Node | None, Value | None]:
    """The first node that gives something else although it reads nothing else; and its result.

    compared: for each value that was there before the step how it differs. Only differences that reach a result of the
    program count, through values that differ too.
    """
    needed = {value.name for program in state.programs for value in values_in(program.outputs)}
    for program in state.programs:
        outside = program.input_storages()
        for node in program.nodes:
            if any(value.tensor.storage in outside for value in written_values(node)):
                needed.update(value.name for value in node.results())
    cause: tuple[Node | None, Value | None] = (None, None)
    for program in reversed(state.programs):
        for node in reversed(program.nodes):
            results = [value for value in node.results() if value.name in needed]
            is_alike = all(value.name in compared and compared[value.name] is None for value in results)
            if node.results() and is_alike:
                continue
            needed.update(value.name for value in node.operands())
            differing = [value for value in results if compared.get(value.name) is not None]
            if differing and all(compared.get(value.name) is None for value in node.operands()):
                cause = (node, differing[0])
    return cause


def _where_it_failed(state: State, run: Outcome) -> Node | None:
    """The first node that did not get to give its results."""
    nodes = (node for program in state.programs for node in program.nodes)
    return next((n for n in nodes if any(value.name not in run.values for value in n.results())), None)


def _error(wide: Outcome, run: Outcome, name: str) -> float | None:
    expected, actual = wide.values.get(name), run.values.get(name)
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return None
    return largest_error(expected, actual) if expected.shape == actual.shape else None


def _run_by(executors: ExecutorList, node: Node) -> str:
    return f"{executors.owner(node).name}: {executors.call(Names(), node)}"


def _node_text(node: Node) -> str:
    results = ", ".join("_" if value is None else value.name for value in node.outputs)
    return f"{results} = {plain_call(Names(), node)}" if results else plain_call(Names(), node)
