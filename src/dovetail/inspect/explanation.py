"""The decisions for one call, with their views: text, page, trace and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from os import PathLike

from dovetail.inspect.chrome_trace import trace_events
from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.explanation_text import render_text
from dovetail.inspect.page import render_page
from dovetail.inspect.written_file import write_text


class Explanation(ExplanationData):
    """What a compilation decided.

    name: of the function. programs: forward, then backward if it trains. step: memory of both, run one after the other
    with saved values in between; for inference, of forward alone. steps: every step in order. decisions: what is saved,
    computed again, done in place, copied. lines: source text by `file:line`. eager: what eager mode would hold, None
    where the recorded program is not known. time: where it goes, if it was measured. call: what a call takes, with what
    operators take for themselves; None for dumps. memory: what makes up the peak of the call, and what lower limits
    cost, if that was asked for; None for dumps.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, *, times: bool = True, full: bool = False) -> str:
        """The memory needed, its holders, the decisions, and the time, in lines of at most 100 columns.

        full: every row, where groups of them and the largest are shown otherwise. times: whether to say how long each
        step of the compilation took, which differs from run to run.
        """
        return render_text(self, times=times, full=full)

    def html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained HTML file.

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
        return json.dumps(
            {**asdict(self), "peak_bytes": self.peak_bytes, "eager_peak_bytes": self.eager_peak_bytes}, indent=1
        )
