"""Run the demo from beginning to end: train each column, print the table, write the picture and the page."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch import Tensor

from dovetail.demo.data import read_standard_library
from dovetail.demo.model import GptConfig
from dovetail.demo.optional import check_optional_packages
from dovetail.demo.page import render_page
from dovetail.demo.picture import draw_picture
from dovetail.demo.table import render_table, verdicts
from dovetail.demo.train import EAGER, Column, TrainingPlan, describe_failure, train_column

_QUICK_MODEL = GptConfig(context=32, layers=2, width=32, heads=2)
_QUICK_STEPS = 4


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What to run, and where to write.

    Attributes:
        steps: training steps of each column.
        seed: decides the initial weights, the data and the dropout masks, the same for every column.
        out_dir: made if need be; gets `demo.png` and `demo.html`.
        extra: more backends of `torch.compile` to set beside, such as "inductor". Where one of these fails, its
            column says so and the demo goes on.
        quick: a tiny model and a handful of steps, to see that everything works.
        backend: the backend of `torch.compile` that is being shown.
    """

    steps: int = 200
    seed: int = 0
    out_dir: Path = Path("dovetail-demo")
    extra: tuple[str, ...] = ()
    quick: bool = False
    backend: str = "dovetail"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured and wrote; `columns` starts with eager and the backend that is shown."""

    columns: tuple[Column, ...]
    picture_path: Path
    page_path: Path

    @property
    def is_bitwise_equal(self) -> bool:
        """Whether the shown backend gave eager's losses and eager's final weights, bit for bit."""
        eager, shown = self.columns[:2]
        return shown.losses == eager.losses and shown.weights_digest == eager.weights_digest


def run_demo(config: DemoConfig, console: Console | None = None) -> DemoResult:
    """Train a small GPT eagerly and compiled, side by side, and report what differs and what does not.

    Args:
        config: see `DemoConfig`.
        console: where to print; standard output when not given.

    Raises:
        MissingDependency: matplotlib or jinja2 is not installed.
        Exception: whatever the shown backend raises; only the columns in `config.extra` may fail quietly.
    """
    check_optional_packages()
    console = console or Console()
    plan = _plan(config)
    columns = _train_all(config, plan, console)

    picture_png = draw_picture(columns)
    page = render_page(columns, picture_png, _sections(plan))
    config.out_dir.mkdir(parents=True, exist_ok=True)
    picture_path = config.out_dir / "demo.png"
    page_path = config.out_dir / "demo.html"
    picture_path.write_bytes(picture_png)
    page_path.write_text(page, encoding="utf-8")

    console.print(render_table(columns))
    for sentence in verdicts(columns):
        console.print(sentence, markup=False)
    console.print(f"picture: {picture_path}", markup=False, soft_wrap=True)
    console.print(f"page:    {page_path}", markup=False, soft_wrap=True)
    return DemoResult(columns, picture_path, page_path)


def _plan(config: DemoConfig) -> TrainingPlan:
    if config.quick:
        return TrainingPlan(_QUICK_MODEL, min(config.steps, _QUICK_STEPS), batch=2, seed=config.seed)
    return TrainingPlan(GptConfig(), config.steps, batch=8, seed=config.seed)


def _train_all(config: DemoConfig, plan: TrainingPlan, console: Console) -> tuple[Column, ...]:
    text = read_standard_library()
    columns: list[Column] = []
    progress = Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
    )
    with progress, torch.random.fork_rng(devices=[]):
        # What the process pays once (lazy imports, thread pools) is nobody's first step.
        train_column(EAGER, replace(plan, steps=1), text, lambda loss: None)
        for name in (EAGER, config.backend, *config.extra):
            task = progress.add_task(name, total=plan.steps, note="")
            may_fail = len(columns) >= 2
            columns.append(_train_one(name, plan, text, progress, task, may_fail=may_fail))
    return tuple(columns)


def _train_one(
    name: str, plan: TrainingPlan, text: Tensor, progress: Progress, task: TaskID, *, may_fail: bool
) -> Column:
    def on_step(loss: float) -> None:
        progress.update(task, advance=1, note=f"loss {loss:.3f}")

    try:
        return train_column(name, plan, text, on_step)
    except Exception as error:
        if not may_fail:
            raise
        progress.update(task, note="failed")
        return Column(name, failure=describe_failure(error))


def _sections(plan: TrainingPlan) -> Mapping[str, Mapping[str, str]]:
    model = plan.model
    return {
        "Configuration": {
            "model": f"GPT, {model.layers} layers, width {model.width}, {model.heads} heads, dropout {model.dropout}",
            "tokens": f"bytes, batches of {plan.batch} x {model.context}",
            "optimizer": f"AdamW, learning rate {plan.learning_rate}",
            "steps": str(plan.steps),
            "seed": str(plan.seed),
            "memory": "exact peak of tensor allocations of one step that is not timed",
        },
        "Environment": {
            "dovetail": _own_version(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "system": platform.platform(),
            "processor": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "threads": str(torch.get_num_threads()),
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    }


def _own_version() -> str:
    try:
        return importlib.metadata.version("dovetail")
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"
