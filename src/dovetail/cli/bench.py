"""`dovetail bench`: a model of the user's, eager and compiled."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.analysis.paired_ratio import paired_ratio
from dovetail.cli.named_object import load_named
from dovetail.cli.output import AsJson, print_json
from dovetail.cli.progress import spinner
from dovetail.errors import BadOptionValue
from dovetail.inspect.bench import Make, Measured, measure_backends

_Program = Annotated[
    str,
    typer.Argument(metavar="FILE:FUNCTION", help="A function that returns a module (or function) and its arguments."),
]
_With = Annotated[
    list[str] | None, typer.Option("--with", metavar="BACKEND", help="Also run this torch.compile backend; repeatable.")
]
_Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Timed calls of each backend.")]
_MIB = 1 << 20
_EXPECTED = "model.py:make, with make() -> (module, args)"


def bench_command(program: _Program, extra: _With = None, rounds: _Rounds = 20, as_json: AsJson = False) -> None:
    """Measure your model, eager and compiled: time, peak memory, and whether results agree.

    FILE:FUNCTION names a function without arguments in a Python file, such as `model.py:make`, that returns a module or
    function and a tuple of arguments. Calls are forward passes, with a backward pass where the results allow one.

    Exit status: 0 when dovetail ran and its results agree with eager's in every bit, 1 when they differ or it failed, 2
    for wrong usage.
    """
    make = _load(program)
    with spinner("bench", quiet=as_json) as progress:
        columns = measure_backends(make, ("dovetail", *(extra or ())), rounds, progress)
    if as_json:
        print_json([{**asdict(column), "median_ms": column.median_ms} for column in columns])
    else:
        Console().print(_table(columns))
    ours = columns[1]
    raise typer.Exit(1 if ours.failure or ours.difference is not None else 0)


def _load(program: str) -> Make:
    """The function that `FILE:FUNCTION` names. Raises: BadOptionValue; what the file raises."""
    make = load_named(program, "FILE:FUNCTION", _EXPECTED)

    def checked() -> object:
        made = make()
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple | list)):
            reason = f"the function returned {type(made).__name__}, not a callable and a tuple of arguments"
            raise BadOptionValue(option="FILE:FUNCTION", value=program, reason=reason, expected=_EXPECTED)
        return made

    return checked  # type: ignore[return-value]


def _table(columns: list[Measured]) -> Table:
    eager = columns[0]
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "first call", "later calls", "peak memory", "results"):
        table.add_column(name, justify="left" if name in ("", "results") else "right", overflow="fold")
    for column in columns:
        if column.failure:
            table.add_row(column.backend, "", "", "", Text(f"failed: {column.failure}", style="red"))
            continue
        is_eager = column is eager
        table.add_row(
            column.backend,
            f"{column.first_call_seconds:.2f} s",
            f"{column.median_ms:.2f} ms{'' if is_eager else _time_ratio(column, eager)}",
            f"{column.peak_bytes / _MIB:.2f} MiB{_ratio(is_eager, column.peak_bytes, eager.peak_bytes)}",
            "reference" if is_eager else "bitwise eager's" if column.difference is None else column.difference,
        )
    return table


def _time_ratio(column: Measured, eager: Measured) -> str:
    ratio = paired_ratio(column.calls_ms, eager.calls_ms)
    return f" ({ratio.median:.2f}x; {ratio.spread})"


def _ratio(is_eager: bool, value: float, reference: float) -> str:
    return "" if is_eager or reference <= 0 else f" ({value / reference:.2f}x)"
