"""What was decided for one call, as plain data: the steps, the nodes, who is alive when, what is saved and copied.

`dovetail.explain` makes an `Explanation`; text, page, trace and JSON are views of it. All bytes are those of the
simulation that the passes decide by (`analysis.liveness`): memory of inputs and scratch memory inside of operators are
not in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike

from dovetail.inspect.chrome_trace import trace_events
from dovetail.inspect.explanation_text import render_text
from dovetail.inspect.page import render_page
from dovetail.inspect.report_rows import Decision, MemoryMap, ProgramReport, StepRow
from dovetail.inspect.written_file import write_text


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a compilation decided.

    name: of the function. programs: forward, then backward if it trains. step: memory of both, run one after the other
    with what is saved in between; for inference that of forward. steps: every step in order. decisions: what is saved,
    computed again, done in place, copied. lines: source text by `file:line`.
    """

    name: str
    programs: tuple[ProgramReport, ...]
    step: MemoryMap
    steps: tuple[StepRow, ...]
    decisions: tuple[Decision, ...]
    lines: Mapping[str, str]

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the whole step, without its inputs."""
        return self.step.peak_bytes

    def __str__(self) -> str:
        return self.text()

    def text(self, *, times: bool = True) -> str:
        """A compact text. times: whether to say how long each step took, which differs from run to run."""
        return render_text(self, times=times)

    def html(self, path: str | PathLike[str]) -> None:
        """Write the report as one HTML file that needs nothing else.

        Raises: ReportNotWritten.
        """
        write_text(path, render_page(self))

    def trace(self, path: str | PathLike[str]) -> None:
        """Write the simulated step in the Trace Event Format, for Perfetto or chrome://tracing; a node is 1 ms long.

        Raises: ReportNotWritten.
        """
        write_text(path, json.dumps({"traceEvents": trace_events(self), "displayTimeUnit": "ms"}))

    def to_json(self) -> str:
        """Everything as JSON; sizes in bytes, times in microseconds."""
        return json.dumps({**asdict(self), "peak_bytes": self.peak_bytes}, indent=1)
