"""What it takes to plan long programs: steps of equal layers, written down node by node, so that nothing is recorded.

A layer is a product of matrices, an activation and a shortcut, with their gradients and the update of the weight. A
program is planned without a limit, and under one of half its peak, each in a process of its own, for the memory.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import last_line_of
from benchmarks.tables import write_tables
from dovetail.ir.program import Node, Operand, Phase, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import InputRole, Parameter, Signature, UserInput, UserOutput
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.memory_limit import MemoryLimit
from dovetail.pipeline.recompute import recompute

aten = torch.ops.aten
_WIDTH = 64
_WAYS = ("no limit", "half of the peak")
_HEAD = ("layers", "nodes", "plan", "seconds", "MB more", "peak, MB", "of", "more work")


@dataclass(frozen=True, slots=True)
class PlanningCost:
    """seconds: of processor time, of the search alone. more_bytes: by how much the resident memory rose during it.

    peak_bytes, was_bytes: of the plan, and of the program as it is. work: of what runs again, as a part of all.
    """

    layers: int
    nodes: int
    plan: str
    seconds: float
    more_bytes: int
    peak_bytes: int
    was_bytes: int
    work: float


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.roles: list[InputRole] = []
        self.storages = 0

    def value(self, like: Value | None = None, *, turned: bool = False) -> Value:
        """A matrix. like: in whose memory it lies."""
        self.storages += 1
        storage = self.storages if like is None else like.tensor.storage
        stride = (1, _WIDTH) if turned else (_WIDTH, 1)
        meta = TensorMeta((_WIDTH, _WIDTH), stride, 0, torch.float32, torch.device("cpu"), storage)
        return Value(f"v{self.storages}", meta)

    def given(self, role: InputRole) -> Value:
        """An input."""
        self.inputs.append(self.value())
        self.roles.append(role)
        return self.inputs[-1]

    def apply(self, target: Any, *args: Operand, phase: Phase = Phase.FORWARD) -> Value:
        """The result of an operator."""
        is_view = target is aten.t.default
        first = args[0] if isinstance(args[0], Value) else None
        made = self.value(first if is_view else None, turned=is_view)
        self.nodes.append(Node(target, args, outputs=(made,), phase=phase))
        return made


def layered_step(layers: int) -> Program:
    """The program of a step of so many layers, with 12 nodes for each."""
    writer, late = _Writer(), Phase.BACKWARD
    x = writer.given(UserInput(0))
    held = []
    for number in range(layers):
        weight = writer.given(Parameter(f"weight_{number}"))
        h = writer.apply(aten.mm.default, x, writer.apply(aten.t.default, weight))
        held.append((weight, x, h))
        x = writer.apply(aten.add.Tensor, writer.apply(aten.gelu.default, h), x)
    g = result = x
    for weight, given, h in reversed(held):
        gh = writer.apply(aten.gelu_backward.default, g, h, phase=late)
        gx = writer.apply(aten.mm.default, gh, weight, phase=late)
        gw = writer.apply(aten.mm.default, writer.apply(aten.t.default, gh, phase=late), given, phase=late)
        g = writer.apply(aten.add.Tensor, g, gx, phase=late)
        new = writer.apply(aten.sub.Tensor, weight, writer.apply(aten.mul.Tensor, gw, 0.1))
        writer.nodes.append(Node(aten.copy_.default, (weight, new)))
    signature = Signature(tuple(writer.roles), (UserOutput(0),))
    return Program("step", Stage.SPLIT, tuple(writer.inputs), tuple(writer.nodes), (result,), signature)


def measure_planning(layers: int, plan: str) -> PlanningCost:
    """Plan one program, in a process of its own."""
    values = last_line_of("planning", str(layers), plan).split()
    seconds, work = float(values[0]), float(values[1])
    nodes, more, peak, was = (int(value) for value in values[2:])
    return PlanningCost(layers, nodes, plan, seconds, more, peak, was, work)


def _plan(layers: int, plan: str) -> str:
    program = layered_step(layers)
    recompute(layered_step(4), {}, PlanMemory())  # what is imported and measured once
    free = recompute(program, {}, PlanMemory(), MemoryLimit(1 << 60))[1].was_bytes
    limit = None if plan == _WAYS[0] else MemoryLimit(free // 2, is_transient=True)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    _, report = recompute(program, {}, PlanMemory(), limit)
    spent = time.process_time() - start
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return f"{spent} {report.work} {len(program.nodes)} {more} {report.peak_bytes} {report.was_bytes}"


def write_planning_report(layers: list[int], machine: dict[str, Any], out: Path) -> None:
    """Print the table, and write `planning.json` and `planning.md` into `out`."""
    rows = [measure_planning(count, plan) for count in layers for plan in _WAYS]
    cells = [
        (
            f"{row.layers:,}",
            f"{row.nodes:,}",
            row.plan,
            f"{row.seconds:.1f}",
            f"{row.more_bytes / 1e6:.0f}",
            f"{row.peak_bytes / 1e6:.2f}",
            f"{row.was_bytes / 1e6:.2f}",
            f"{100 * row.work:.1f} %",
        )
        for row in rows
    ]
    write_tables("planning", {"Planning": (_HEAD, cells)}, {"rows": [asdict(row) for row in rows]}, machine, out)


if __name__ == "__main__":
    print(_plan(int(sys.argv[1]), sys.argv[2]))
