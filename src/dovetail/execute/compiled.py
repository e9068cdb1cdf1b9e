"""A program as a Python function: generated source, compiled once.

The function takes a list of inputs and empties it, so that an input can die at its last use; every value is forgotten
after its last use. An error raised while it runs gets a note that names the user's line. While a profiler records, a
second version with ranges by module runs instead.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.profiler import record_function

from dovetail.analysis.liveness import last_uses
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Program
from dovetail.ir.text import Source, emit
from dovetail.ops import prims
from dovetail.torch_compat.autograd import profiler_is_running

_SERIAL = itertools.count()


class CompiledProgram:
    """Callable `(inputs: list) -> tuple`; empties the list."""

    def __init__(self, program: Program, executors: ExecutorList) -> None:
        self.program = program
        self.executors = executors
        self._filename = f"<dovetail {program.name} {next(_SERIAL)}>"
        self._source: Source = emit(program, executors.call, last_uses(program), comments=False)
        self._run = _build(self._source, self._filename)
        self._ranged: Callable[[list[Any]], tuple[Any, ...]] | None = None

    @property
    def source(self) -> str:
        """The source that runs, with shapes and the user's lines as comments."""
        return emit(self.program, self.executors.call, last_uses(self.program)).text

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run. inputs: one per program input, in order; emptied."""
        if profiler_is_running():
            return self._with_ranges(inputs)
        try:
            return self._run(inputs)
        except Exception as error:
            self._explain(error, self._filename, self._source)
            raise

    def _with_ranges(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self._ranged is None:
            source = emit(
                self.program,
                self.executors.call,
                last_uses(self.program),
                comments=False,
                ranges=lambda node: node.origin.module,
            )
            self._ranged = _build(source, f"{self._filename[:-1]} profiled>")
        with record_function(self.program.name):
            return self._ranged(inputs)

    def _explain(self, error: Exception, filename: str, source: Source) -> None:
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == filename:
                node = self._node_at(trace.tb_lineno, source)
                if node is not None:
                    origin = str(node.origin) or "an operator without a line of its own"
                    error.add_note(f"dovetail: while running {node.target} of {self.program.name}, from {origin}")
            trace = trace.tb_next

    def _node_at(self, line: int, source: Source) -> Node | None:
        return next((n for n, at in zip(self.program.nodes, source.lines, strict=True) if at == line), None)


def _build(source: Source, filename: str) -> Callable[[list[Any]], tuple[Any, ...]]:
    namespace: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "prims": prims,
        "record_function": record_function,
        **source.globals,
    }
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    exec(compile(source.text, filename, "exec"), namespace)
    function: Callable[[list[Any]], tuple[Any, ...]] = namespace["run"]
    return function
