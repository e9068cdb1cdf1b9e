"""A program as a Python function: generated source, compiled once.

The function takes a list of inputs and empties it, so that an input can die at its last use; every value is forgotten
after its last use. An error raised while it runs gets a note that names the user's line. While a profiler records, a
second version with ranges by module runs instead.
"""

from __future__ import annotations

import itertools
import linecache
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import CodeType, MappingProxyType, TracebackType
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function

from dovetail.analysis.grouped_run import grouped_run
from dovetail.analysis.liveness import last_uses
from dovetail.execute.partly_run import PartlyRun
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Program
from dovetail.ir.text import Names, ProgramText, emit
from dovetail.ops import prims
from dovetail.torch_compat.autograd import profiler_is_running
from dovetail.torch_compat.modes import autocast_is_active, autocast_off

AfterNode: TypeAlias = Callable[[object], object]

_SERIAL = itertools.count()
_NOTHING: Mapping[Node, AfterNode] = MappingProxyType({})
_FILES = "<dovetail "


@dataclass(frozen=True, slots=True)
class _Code:
    source: ProgramText
    filename: str
    run: Callable[[list[Any]], tuple[Any, ...]]


class CompiledProgram:
    """Callable `(inputs: list) -> tuple`; empties the list."""

    def __init__(
        self,
        program: Program,
        executors: ExecutorList,
        after: Mapping[Node, AfterNode] = _NOTHING,
        dying: Collection[int] | None = None,
    ) -> None:
        """after: by a node, what is called with its result. dying: numbers of inputs that nobody else holds; None if it
        may be any.
        """
        self.program = program
        self.executors = executors.bound_to(program, after, dying)
        self._after = after
        self._serial = next(_SERIAL)
        self._code = self._build(f"{_FILES}{program.name} {self._serial}>", None)
        self._profiled: _Code | None = None

    @property
    def source(self) -> str:
        """The source that runs, with shapes and the user's lines as comments."""
        return emit(self.program, self.executors.call, last_uses(self.program), groups=self.executors.groups).text

    @property
    def as_run(self) -> Program:
        """The program with one node for all that one piece of code runs: for what is held when."""
        return grouped_run(self.program, self.executors.groups)

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run. inputs: one per program input, in order; emptied."""
        code = self._with_ranges() if profiler_is_running() else self._code
        try:
            if autocast_is_active():  # casts are nodes of the program
                with autocast_off():
                    return code.run(inputs)
            return code.run(inputs)
        except Exception as error:
            self._explain(error)
            raise

    def failed_at(self, error: BaseException) -> int | None:
        """The number of the node that raised an error, None where that is not known; of the last one that may have."""
        if isinstance(error, PartlyRun):
            return error.at
        codes = [self._code] if self._profiled is None else [self._code, self._profiled]
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            for code in codes:
                if trace.tb_frame.f_code.co_filename == code.filename and trace.tb_lineno in code.source.lines:
                    return code.source.lines.index(trace.tb_lineno)
            trace = trace.tb_next
        return None

    def _with_ranges(self) -> _Code:
        if self._profiled is None:
            filename = f"{_FILES}{self.program.name} {self._serial} profiled>"
            code = self._build(filename, lambda node: node.origin.module)

            def run(inputs: list[Any]) -> tuple[Any, ...]:
                with record_function(self.program.name):
                    return code.run(inputs)

            self._profiled = replace(code, run=run)
        return self._profiled

    def _build(self, filename: str, ranges: Callable[[Node], str] | None) -> _Code:
        dying = last_uses(self.program)
        groups = self.executors.groups
        source = emit(self.program, self._call, dying, comments=False, ranges=ranges, groups=groups)
        return _Code(source, filename, _build(source, filename))

    def _call(self, names: Names, node: Node) -> str:
        call = self.executors.call(names, node)
        after = self._after.get(node)
        return call if after is None else f"{names.constant(after, 'after')}({call})"

    def _explain(self, error: Exception) -> None:
        at = self.failed_at(error)
        if at is not None:
            node = self.program.nodes[at]
            origin = str(node.origin) or "an operator without a line of its own"
            error.add_note(f"dovetail: while running {node.target} of {self.program.name}, from {origin}")


def is_generated(code: CodeType) -> bool:
    """Whether it is the code of a program."""
    return code.co_filename.startswith(_FILES)


def _build(source: ProgramText, filename: str) -> Callable[[list[Any]], tuple[Any, ...]]:
    namespace: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "operator": operator,
        "prims": prims,
        "record_function": record_function,
        **source.globals,
    }
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    exec(compile(source.text, filename, "exec"), namespace)
    function: Callable[[list[Any]], tuple[Any, ...]] = namespace.pop("run")  # so that it does not hold itself
    return function
