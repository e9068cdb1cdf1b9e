"""`dovetail demo`: eager and compiled training side by side."""

from __future__ import annotations

import os
import sys
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
    steps: Annotated[
        int, typer.Option(min=1, help="Maximum number of training steps per column.")
    ] = _DEMO_DEFAULTS.steps,
    seconds: Annotated[float, typer.Option(min=0, help="Train no longer than this.")] = _DEMO_DEFAULTS.seconds,
    threads: Annotated[int, typer.Option(min=1, help="Threads per operator.")] = _DEMO_DEFAULTS.threads,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the picture and the page.")
    ] = _DEMO_DEFAULTS.out_dir,
    seed: Annotated[int, typer.Option(help="Seed of weights, data and dropout masks.")] = _DEMO_DEFAULTS.seed,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and a handful of steps.")] = False,
    opens: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the report; default: at a terminal with a screen.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small GPT eagerly and compiled, and compare time, memory and results."""
    config = DemoConfig(
        steps=steps,
        seconds=seconds,
        threads=threads,
        seed=seed,
        out_dir=out,
        extra=tuple(extra or ()),
        quick=quick,
        opens=_has_screen() and not as_json if opens is None else opens,
    )
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
            "report": None if result.report_path is None else str(result.report_path),
        }
    )


def _has_screen() -> bool:
    """Whether somebody sits at a terminal, and a browser would have a place to show a page."""
    has_display = sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
    return has_display and sys.stdout.isatty()
