"""The executors that options name."""

from __future__ import annotations

from dovetail.execute.installed import executor_by_name
from dovetail.execute.protocol import ExecutorList
from dovetail.pipeline.options import Options


def make_executors(options: Options) -> ExecutorList:
    """The executors that the options name, in order, with `aten` as the last resort.

    Raises: BadOptionValue for a name that does not exist.
    """
    names = [*options.executors, *(() if "aten" in options.executors else ("aten",))]
    made = ExecutorList(tuple(executor_by_name(name) if isinstance(name, str) else name for name in names))
    return made.with_rounding() if options.numerics == "fast" else made
