"""`dovetail fit`: whether a step or a model fits in so much memory, what that costs, and which batch would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dovetail.cli.named_object import load_named
from dovetail.cli.output import AsJson, print_json
from dovetail.cli.progress import spinner
from dovetail.errors import BadOptionValue
from dovetail.frontends.estimate import Estimate, estimate
from dovetail.frontends.function import CompiledFunction
from dovetail.pipeline.memory_limit import memory_limit, readable
from dovetail.pipeline.recompute import PlanPoint

_Program = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNCTION", help="A function that returns a training step (or a module) and its arguments."
    ),
]
_Limit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help='As memory_limit= takes it: "6GiB", or above state and arguments "transient:2GiB".'
    ),
]
_Batch = Annotated[bool, typer.Option("--batch", help="Also find the largest batch that fits; needs --limit.")]
_EXPECTED = "train.py:make, with make() -> (step, args)"
_DOES_NOT_FIT = 1
_BAR = 30


def fit_command(program: _Program, limit: _Limit = None, batch: _Batch = False, as_json: AsJson = False) -> None:
    """Say how much memory a step needs, what makes it up, and what less of it would cost. Nothing of it runs.

    FILE:FUNCTION names a function without arguments in a Python file, such as `train.py:make`, that returns a step as
    `dovetail.compile_step` takes it, or a module, and a tuple of arguments. It may make its tensors on device meta.

    Exit status: 0 if it fits, or without a limit; 1 if no plan fits; 2 for wrong usage.
    """
    if limit is not None:
        memory_limit(limit)
    elif batch:
        raise BadOptionValue(option="--batch", value=True, reason="there is no limit", expected='also --limit "6GiB"')
    target, args = _load(program)
    with spinner("fit", quiet=as_json) as progress:
        progress("recording")
        found = estimate(target, *args)
        progress("plans under lower limits")
        points = found.plans()
        fits = limit is None or found.fits(limit)
        if batch and limit is not None:
            progress("batch sizes")
        largest = found.max_batch(limit) if batch and limit is not None else None
    if as_json:
        print_json(_facts(found, points, limit, fits, largest))
    else:
        console = Console(soft_wrap=True)
        console.print(str(found), markup=False, highlight=False)
        if points:
            console.print(_table(points))
        is_model = isinstance(target, torch.nn.Module | CompiledFunction)
        for line in _verdict(found, limit, fits, largest, is_model=is_model):
            console.print(line, markup=False, highlight=False)
    raise typer.Exit(0 if fits else _DOES_NOT_FIT)


def _load(program: str) -> tuple[Any, tuple[Any, ...]]:
    """What the function that `FILE:FUNCTION` names returns. Raises: BadOptionValue; what the file raises."""
    made: Any = load_named(program, "FILE:FUNCTION", _EXPECTED)()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple | list)):
        reason = f"the function returned {type(made).__name__}, not a callable and a tuple of arguments"
        raise BadOptionValue(option="FILE:FUNCTION", value=program, reason=reason, expected=_EXPECTED)
    return made[0], tuple(made[1])


def _facts(
    found: Estimate, points: Sequence[PlanPoint], limit: str | None, fits: bool, largest: int | None
) -> dict[str, object]:
    return {
        "name": found.name,
        "peak_bytes": found.peak_bytes,
        "floor_bytes": found.floor_bytes,
        "transient_bytes": found.transient_bytes,
        "floor_transient_bytes": found.floor_transient_bytes,
        "breakdown": dict(found.breakdown),
        "plans": [
            {"transient_bytes": point.peak_bytes, "work": point.work, "written_bytes": point.written_bytes}
            for point in points
        ],
        "limit": limit,
        "fits": fits,
        "largest_batch": largest,
        "unknown_needs": list(found.unknown_needs),
        "extrapolated": list(found.extrapolated),
    }


def _table(points: Sequence[PlanPoint]) -> Table:
    """What each limit costs, the lowest first."""
    table = Table(box=box.SIMPLE_HEAD, title="What a lower limit costs", title_justify="left")
    has_file = any(point.written_bytes for point in points)
    for name in ("above state and arguments", "more work", *(("to the file",) if has_file else ()), ""):
        table.add_column(name, justify="left" if not name else "right")
    most = max(point.peak_bytes for point in points)
    for point in points:
        bar = "#" * max(1, round(_BAR * point.peak_bytes / max(most, 1)))
        written = (readable(point.written_bytes),) if has_file else ()
        table.add_row(readable(point.peak_bytes), f"{100 * point.work:.1f} %", *written, bar)
    return table


def _verdict(found: Estimate, limit: str | None, fits: bool, largest: int | None, *, is_model: bool) -> list[str]:
    if limit is None:
        return []
    floor = found.floor_transient_bytes if memory_limit(limit).is_transient else found.floor_bytes
    call = f': dovetail.compile_step(step, memory_limit="{limit}")'
    if is_model:  # a limit of a compiled model is for backward, too
        call = f' without backward: in torch.no_grad(), dovetail.compile(model, memory_limit="{limit}")'
    lines = [f"fits in {limit}{call}" if fits else f"does not fit in {limit}: the lowest found is {readable(floor)}"]
    if is_model and fits:
        lines.append("to train it, give the whole step instead: that has backward and the optimizer")
    if found.breakdown["gradients"] and not fits:
        lines.append("gradients left in .grad count; compile_step(step, keep_grads=False) frees each one early")
    if largest is not None:
        lines.append(f"the largest batch that fits: {largest}")
    return lines
