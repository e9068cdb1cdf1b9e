"""Run a dump again, and compare: every step with the first one, and each call with its recorded results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.artifact.call import load_call
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.dump_folder import Compilation, calls_in, read_dump, read_step
from dovetail.inspect.plain_run import Difference, compare, run_program, with_threads
from dovetail.inspect.states import State, difference, random_inputs, replay_inputs_of, run_state, series_of, states_of
from dovetail.ir.program import Program
from dovetail.pipeline.dump import BACKWARD, FORWARD, JOINT

EQUAL, RAN, DIFFERS, FAILED, SKIPPED = "equal", "ran", "differs", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One program that was run again. inputs: `recorded` or `random`. verdict: a word of this module. detail: why."""

    program: str
    step: str
    nodes: int
    inputs: str
    verdict: str
    detail: str = ""


def replay(
    path: str | Path,
    *,
    rtol: float | None = None,
    progress: Callable[[str], None] | None = None,
    allow: Iterable[str] = (),
) -> list[ReplayRow]:
    """Run every program in a folder that DOVETAIL_DUMP or `graph_dumper_aot` wrote, or one file of it.

    rtol: how much may differ, relative to the largest element; nothing when not given. allow: operators of other
    packages that the programs may call, as in `dovetail.load`.
    Raises: BadArtifact for another folder.
    """
    place, allowed = Path(path), tuple(allow)
    told = progress or (lambda text: None)
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*.json") if _is_single(p))
    rows = [_replay_file(file, rtol, told, allowed) for file in files]
    if not files:
        for compilation in read_dump(place, allow=allowed):
            for series in series_of(compilation):
                rows += _replay_compilation(series, rtol, told)
    return rows


def _is_single(path: Path) -> bool:
    """Whether a program stands for itself: steps of a compilation have numbers."""
    return not (path.stem[:3].isdigit() and path.stem[3:4] == "-")


def _replay_compilation(
    compilation: Compilation, rtol: float | None, progress: Callable[[str], None]
) -> list[ReplayRow]:
    name = compilation.folder.name
    rows = [
        ReplayRow(name, step.name, int(step.facts.get("nodes", 0)), "", SKIPPED, step.reason)
        for step in compilation.steps
        if step.program is None
    ]
    states = states_of(compilation)
    if not states:
        return rows
    given = replay_inputs_of(compilation, states)
    inputs = "recorded" if given.is_recorded else "random"
    expected = run_state(states[0], given)
    verdict = FAILED if expected.error else RAN
    rows.append(ReplayRow(name, states[0].step, states[0].nodes, inputs, verdict, expected.error))
    for state in states[1:]:
        progress(f"{name} {state.step}")
        found = difference(expected, run_state(state, given), rtol)
        detail = "" if found is None else f"{found[0]} {found[1]}"
        rows.append(ReplayRow(name, state.step, state.nodes, inputs, EQUAL if found is None else DIFFERS, detail))
    return rows + replay_calls(compilation, states[-1], rtol)


def replay_calls(compilation: Compilation, last: State, rtol: float | None) -> list[ReplayRow]:
    """Each half of the last state on the inputs of its call, held against what the call gave.

    Nothing for a compilation whose calls were not kept.
    """
    rows = []
    parts = (FORWARD, BACKWARD) if len(last.programs) > 1 else (JOINT,)
    for part, program in zip(parts, last.programs, strict=True):
        call = compilation.calls.get(part)
        if call is not None and call.results is not None:
            with with_threads(compilation.steps[0].facts.get("threads")):
                verdict, detail = _again(program, call.inputs, call.state, call.results, rtol, last.executors)
            rows.append(
                ReplayRow(compilation.folder.name, f"{part} call", len(program.nodes), "recorded", verdict, detail)
            )
    return rows


def _replay_file(path: Path, rtol: float | None, progress: Callable[[str], None], allow: tuple[str, ...]) -> ReplayRow:
    step = read_step(path, allow=allow)
    progress(path.stem)
    if step.program is None:
        return ReplayRow(path.stem, "", int(step.facts.get("nodes", 0)), "", SKIPPED, step.reason)
    given = path.with_name(f"{path.stem}.inputs.safetensors")
    results = path.with_name(f"{path.stem}.results.safetensors")
    if not _is_single(path) and step.part in (calls := calls_in(path.parent)):
        call = calls[step.part]
        with with_threads(step.facts.get("threads")):
            verdict, detail = _again(step.program, call.inputs, call.state, call.results, rtol)
        return ReplayRow(path.stem, "", len(step.program.nodes), "recorded", verdict, detail)
    inputs: tuple[Any, ...] = tuple(random_inputs(step.program, step.hints))
    state = None
    if given.exists():
        *loaded, state = load_call(given)
        inputs = tuple(loaded)
    kind = "recorded" if given.exists() else "random"
    expected = tuple(load_call(results)) if given.exists() and results.exists() else None
    verdict, detail = _again(step.program, inputs, state, expected, rtol)
    return ReplayRow(path.stem, "", len(step.program.nodes), kind, verdict, detail)


def _again(
    program: Program,
    inputs: tuple[Any, ...],
    state: Any,
    expected: tuple[Any, ...] | None,
    rtol: float | None,
    executors: ExecutorList | None = None,
) -> tuple[str, str]:
    """Verdict and detail of one run."""
    try:
        outputs = run_program(program, inputs, state=state, executors=executors)
    except Exception as error:  # whatever an operator raises is the finding
        return FAILED, f"{type(error).__name__}: {error}"
    if expected is None:
        return RAN, ""
    if len(outputs) != len(expected):
        return DIFFERS, f"{len(outputs)} results, {len(expected)} then"
    found: list[tuple[int, Difference | None]] = [
        (place, compare(a, b, rtol)) for place, (a, b) in enumerate(zip(expected, outputs, strict=True))
    ]
    apart = [(place, what) for place, what in found if what is not None]
    return (EQUAL, "") if not apart else (DIFFERS, f"result {apart[0][0]} {apart[0][1]}")
