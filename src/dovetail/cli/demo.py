"""`dovetail demo`: eager and compiled training side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dovetail.cli.output import AsJson, print_json
from dovetail.demo import DemoConfig, run_demo

_DEMO_DEFAULTS = DemoConfig()


def demo(
    *,
    extra: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="BACKEND", help="Also run this torch.compile backend; may be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each column.")] = _DEMO_DEFAULTS.steps,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Where the picture and the page go.")
    ] = _DEMO_DEFAULTS.out_dir,
    seed: Annotated[int, typer.Option(help="Decides weights, data and dropout masks.")] = _DEMO_DEFAULTS.seed,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and a handful of steps.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small GPT eagerly and compiled, and compare time, memory and results."""
    config = DemoConfig(steps=steps, seed=seed, out_dir=out, extra=tuple(extra or ()), quick=quick)
    if not as_json:
        run_demo(config)
        return
    result = run_demo(config, Console(stderr=True))
    print_json(
        {
            "columns": [asdict(column) for column in result.columns],
            "is_bitwise_equal": result.is_bitwise_equal,
            "picture": str(result.picture_path),
            "page": str(result.page_path),
        }
    )
