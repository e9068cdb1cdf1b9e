"""What is in memory where a program needs most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.analysis.liveness import Need, simulate_peak, storage_lives
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.sizes import Number


@dataclass(frozen=True, slots=True)
class Held:
    """A storage that the program has made. value: the first one on it. maker: index of the node that made it."""

    storage: int
    value: Value
    maker: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PeakContents:
    """peak_bytes: as `simulate_peak` counts them: what is held, and the workspace: what operators take besides.

    node: where it is; -1 for an empty program.
    """

    peak_bytes: int
    node: int
    held: tuple[Held, ...]
    workspace_bytes: int


def contents_at_peak(program: Program, hints: Mapping[str, Number], need_of: Callable[[Node], Need]) -> PeakContents:
    """What makes up the peak of a run in program order. need_of: what operators take besides."""
    report = simulate_peak(program, hints, need_of=need_of)
    if report.node < 0:
        return PeakContents(report.peak_bytes, -1, (), report.peak_bytes)
    held = []
    workspace = need_of(program.nodes[report.node]).scratch_bytes
    for life in storage_lives(program, hints):
        if not life.first <= report.node <= life.last:
            continue
        maker = program.nodes[life.first]
        on_it = [(k, v) for k, v in enumerate(maker.outputs) if v is not None and _lies_on(v, life.storage)]
        workspace += sum(need_of(maker).kept_by(place) for place, _ in on_it[:1])
        held.append(Held(life.storage, on_it[0][1], life.first, life.bytes))
    assert sum(x.bytes for x in held) + workspace == report.peak_bytes, "lives add up to the simulated peak"
    return PeakContents(report.peak_bytes, report.node, tuple(held), workspace)


def _lies_on(value: Value, storage: int) -> bool:
    return value.is_tensor and value.tensor.storage == storage
