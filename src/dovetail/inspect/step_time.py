"""How long the operators of a compiled program take, next to eager's.

Both sides run here, in turn, on the same random inputs: eager's is the recorded program, the other is the
compiled one, run by its executors. No user code is called, and no user tensor is touched. The time that eager spends in
Python and autograd between operators is not counted.

Cost: two clock reads per operator on both sides, copies of the inputs for each round, and their memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.analysis.paired_ratio import PairedRatio, paired_ratio
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.memory_map import node_origins, operator_name
from dovetail.inspect.plain_run import run_program
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.program import Node, Origin, Program, meta_symbols
from dovetail.ir.signature import NumberInput, Residual
from dovetail.ir.sizes import Number
from dovetail.ir.text import Names
from dovetail.pipeline.differential import sample_inputs, without_questions

_ROUNDS = 9
_LEAST_ROUNDS = 3
_SECONDS = 20.0  # of rounds, when the least number of them is done
_NUMBER = 0.5  # for learning rates and the like, which powers and roots must stay real numbers for


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The median time of one operator. executor: who ran it, "eager" on that side."""

    operator: str
    executor: str
    origin: Origin
    time_ns: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Both sides. eager_ns, compiled_ns: medians of whole runs. failure: why there is none, "" where there is.

    ratio: the time of what was compiled divided by eager's; None where there is a failure.
    """

    eager_ns: int = 0
    compiled_ns: int = 0
    ratio: PairedRatio | None = None
    eager: tuple[OperatorTime, ...] = ()
    compiled: tuple[OperatorTime, ...] = ()
    failure: str = ""


def measure_step(
    recorded: Program, programs: Sequence[Program], executors: ExecutorList | None, hints: Mapping[str, Number]
) -> StepTime:
    """Time a compiled program next to the recorded one.

    recorded: as eager runs it. programs: what was compiled, forward before backward. executors: of those; `aten` if not
    given. hints: a number for each size symbol. What an operator raises on random inputs becomes the `failure`.
    """
    aten = ExecutorList((AtenExecutor(),))
    before = torch.get_rng_state()
    try:
        eager = _Side([recorded], aten, "eager")
        compiled = _Side(programs, executors or aten, "")
        values = _values([recorded, *programs], hints)
        _run(eager, compiled, values)
    except Exception as error:  # whatever an operator raises on inputs that are random
        return StepTime(failure=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    finally:
        torch.set_rng_state(before)
    return StepTime(
        eager_ns=int(statistics.median(eager.totals)),
        compiled_ns=int(statistics.median(compiled.totals)),
        ratio=paired_ratio(compiled.totals, eager.totals),
        eager=eager.medians(),
        compiled=compiled.medians(),
    )


def _values(programs: Sequence[Program], hints: Mapping[str, Number]) -> dict[str, Any]:
    """Random inputs by name, none of them negative: a step's state may be a variance, or count calls."""
    values: dict[str, Any] = {}
    for largest in (1, 0):  # whole numbers, some of which are places in another tensor
        values.clear()
        for program in programs:
            known = {**dict.fromkeys(_numbers_read(program), _NUMBER), **hints}
            for value, item in zip(program.inputs, sample_inputs(program, known, largest), strict=True):
                values.setdefault(value.name, _without_sign(item))
        try:
            run_program(without_questions(programs[0]), [values[value.name] for value in programs[0].inputs])
            break
        except (IndexError, RuntimeError):
            if not largest:
                raise
    return values


def _numbers_read(program: Program) -> list[str]:
    """Symbols of numbers that a training step reads: learning rates and the like."""
    roles = zip(program.signature.inputs, program.inputs, strict=False)
    return [name for role, value in roles if isinstance(role, NumberInput) for name in meta_symbols(value.meta)]


def _without_sign(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and item.dtype.is_floating_point:
        memory = item.untyped_storage()
        whole = torch.empty(0, dtype=item.dtype, device=item.device).set_(memory)
        whole.abs_()
    return item


def _run(eager: _Side, compiled: _Side, values: Mapping[str, Any]) -> None:
    """Time both sides in turn."""
    for side in (eager, compiled):
        side.run(values)
        side.forget()
    started, rounds = time.perf_counter(), 0
    while rounds < _ROUNDS and (rounds < _LEAST_ROUNDS or time.perf_counter() - started < _SECONDS):
        for side in (eager, compiled) if rounds % 2 == 0 else (compiled, eager):
            side.run(values)
        rounds += 1


class _Side:
    """Programs with a clock around each operator. name: of who runs them, where that is not the executor's."""

    def __init__(self, programs: Sequence[Program], executors: ExecutorList, name: str) -> None:
        self._nodes: list[Node] = []
        self._spans: list[list[int]] = []
        self._origins: list[Origin] = []
        self._names: list[str] = []
        self.totals: list[int] = []
        self._codes = [self._timed(program, executors, name) for program in programs]

    def _timed(self, program: Program, executors: ExecutorList, name: str) -> CompiledProgram:
        program = without_questions(program)
        origins = node_origins(program)
        for node in program.nodes:
            self._nodes.append(node)
            self._spans.append([])
            self._origins.append(origins[node])
            self._names.append(name or executors.owner(node).name)
        numbers = {node: number for number, node in enumerate(self._nodes)}
        return CompiledProgram(program, ExecutorList((_Timed(executors, numbers, self._spans),)))

    def run(self, values: Mapping[str, Any]) -> None:
        """Once, on copies of the values."""
        names = dict.fromkeys(value.name for code in self._codes for value in code.program.inputs)
        own = [name for name in names if name in values]
        copies = dict(zip(own, clone_together([values[name] for name in own]), strict=True))
        total = 0
        for code in self._codes:
            roles = code.program.signature.inputs or (None,) * len(code.program.inputs)
            given = list(zip(roles, code.program.inputs, strict=True))
            inputs = [copies[role.name if isinstance(role, Residual) else value.name] for role, value in given]
            with torch.no_grad():
                start = time.perf_counter_ns()
                outputs = code(inputs)
                total += max(time.perf_counter_ns() - start, 1)
            for role, result in zip(code.program.signature.outputs, outputs, strict=False):
                if isinstance(role, Residual):
                    copies[role.name] = result
        self.totals.append(total)

    def forget(self) -> None:
        """Forget the runs so far: the first one is slower."""
        self.totals.clear()
        for spans in self._spans:
            spans.clear()

    def medians(self) -> tuple[OperatorTime, ...]:
        """The time of each operator, in order."""
        found = zip(self._nodes, self._names, self._origins, self._spans, strict=True)
        return tuple(
            OperatorTime(operator_name(node), name, origin, int(statistics.median(spans)) if spans else 0)
            for node, name, origin, spans in found
        )


class _Timed:
    """Claims every node, and has the call that its executor makes of it timed. spans: by number, in nanoseconds."""

    name = "timed"

    def __init__(self, executors: ExecutorList, numbers: Mapping[Node, int], spans: Sequence[list[int]]) -> None:
        self._executors = executors
        self._numbers = numbers
        self._spans = spans
        self._begin: Callable[[], int] = time.perf_counter_ns

    def claim(self, node: Node) -> bool:
        """Always."""
        return True

    def call(self, names: Names, node: Node) -> str:
        """The call of the node, inside a call that notes how long it took."""
        begin, end = names.constant(self._begin, "_begin"), names.constant(self._end, "_end")
        return f"{end}({self._numbers[node]}, {begin}(), {self._executors.call(names, node)})"

    def _end(self, number: int, start_ns: int, result: Any) -> Any:
        self._spans[number].append(time.perf_counter_ns() - start_ns)
        return result
