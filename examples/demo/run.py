"""Run the demo from beginning to end: train the columns, print the table, write picture, page and report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.data import read_standard_library
from demo.model import GptConfig
from demo.page import render_page
from demo.picture import draw_picture
from demo.table import render_table, verdicts
from demo.train import EAGER, Column, TrainingPlan, train_columns
from dovetail.inspect.explain import explanations_of
from dovetail.inspect.explanation import Explanation
from dovetail.pipeline.compile_trace import CompileTrace

_QUICK_MODEL = GptConfig(context=32, layers=2, width=32, heads=2)
_QUICK_STEPS = 4
_DOVETAIL = "dovetail"


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What to run, and where to write.

    Attributes:
        steps: training steps of each column, at most.
        seconds: no step begins after so many seconds of training, once there are enough to compare.
        threads: that operators may use. With one, other work on the machine disturbs a step least.
        seed: decides the initial weights, the data and the dropout masks, the same for every column.
        out_dir: made if need be; gets `demo.png`, `demo.html`, `report.html` and the folder `programs`.
        extra: more backends of `torch.compile` to set beside, such as "inductor". Where one of these fails, its
            column says so and the demo goes on.
        quick: a tiny model and a handful of steps, to see that everything works.
        backend: the backend of `torch.compile` that is being shown.
        opens: whether to open the page in a browser at the end.
    """

    steps: int = 200
    seconds: float = 45.0
    threads: int = 1
    seed: int = 0
    out_dir: Path = Path("dovetail-demo")
    extra: tuple[str, ...] = ()
    quick: bool = False
    backend: str = _DOVETAIL
    opens: bool = False


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured and wrote; `columns` starts with eager and the backend that is shown.

    report_path: what dovetail decided for the program that was trained; None where another backend is shown.
    """

    columns: tuple[Column, ...]
    picture_path: Path
    page_path: Path
    report_path: Path | None

    @property
    def is_bitwise_equal(self) -> bool:
        """Whether the shown backend gave eager's losses and eager's final weights, bit for bit."""
        eager, shown = self.columns[:2]
        return shown.losses == eager.losses and shown.weights_digest == eager.weights_digest


def run_demo(config: DemoConfig, console: Console | None = None) -> DemoResult:
    """Train a small GPT eagerly and compiled, a step of each in turn, and report what differs and what does not.

    Args:
        config: see `DemoConfig`.
        console: where to print; standard output when not given.

    Raises:
        OSError: the folder cannot be written.
        Exception: whatever the shown backend raises; only the columns in `config.extra` may fail quietly.
    """
    config.out_dir.mkdir(parents=True, exist_ok=True)
    console = console or Console()
    plan, trace = _plan(config), CompileTrace()
    console.print(_announcement(config, plan), markup=False)
    with _threads(config.threads):
        columns = _train(config, plan, trace, console)
    result = DemoResult(
        columns,
        config.out_dir / "demo.png",
        config.out_dir / "demo.html",
        config.out_dir / "report.html" if config.backend == _DOVETAIL else None,
    )
    _write(result, config, trace, plan)
    console.print(render_table(columns))
    for sentence in verdicts(columns):
        console.print(sentence, markup=False)
    _print_what_next(result, config, console)
    if config.opens:
        webbrowser.open((result.report_path or result.page_path).resolve().as_uri())
    return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plan(config: DemoConfig) -> TrainingPlan:
    if config.quick:
        return TrainingPlan(_QUICK_MODEL, min(config.steps, _QUICK_STEPS), batch=2, seed=config.seed)
    return TrainingPlan(GptConfig(), config.steps, batch=8, seed=config.seed, seconds=config.seconds)


def _announcement(config: DemoConfig, plan: TrainingPlan) -> str:
    names = " and ".join((EAGER, config.backend, *config.extra))
    limit = "" if plan.seconds == float("inf") else f", for at most {plan.seconds:.0f} seconds"
    return f"Training a GPT of {plan.model.layers} layers with {names}, a step of each in turn{limit}."


def _train(config: DemoConfig, plan: TrainingPlan, trace: CompileTrace, console: Console) -> tuple[Column, ...]:
    progress = Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
    )
    runs = [(name, _options(name, config, trace)) for name in (EAGER, config.backend, *config.extra)]
    with progress, torch.random.fork_rng(devices=[]):
        tasks = [progress.add_task(name, total=plan.steps, note="compiling") for name, _ in runs]

        def on_step(place: int, loss: float) -> None:
            progress.update(tasks[place], advance=1, note=f"loss {loss:.3f}")

        columns = train_columns(plan, runs, read_standard_library(), on_step)
        for task, column in zip(tasks, columns, strict=True):
            note = "failed" if column.failure else f"loss {column.losses[-1]:.3f}"
            progress.update(task, total=max(1, len(column.losses)), note=note)
    return columns


def _options(name: str, config: DemoConfig, trace: CompileTrace) -> Mapping[str, object] | None:
    if name != _DOVETAIL:
        return None
    return {"compile_trace": trace, "dump": str(config.out_dir / "programs")}


def _write(result: DemoResult, config: DemoConfig, trace: CompileTrace, plan: TrainingPlan) -> None:
    picture_png = draw_picture(result.columns)
    result.picture_path.write_bytes(picture_png)
    report = result.report_path.name if result.report_path is not None else ""
    page = render_page(result.columns, picture_png, _sections(config, plan, result.columns), report)
    result.page_path.write_text(page, encoding="utf-8")
    if result.report_path is not None:
        _training_program(trace).html(result.report_path)


def _training_program(trace: CompileTrace) -> Explanation:
    """The largest of the programs that ran: the model; Dynamo may have cut off pieces around it."""
    return max(explanations_of(trace.lowerings), key=lambda found: sum(len(part.nodes) for part in found.programs))


def _print_what_next(result: DemoResult, config: DemoConfig, console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    line(f"page:    {result.page_path}")
    line(f"picture: {result.picture_path}")
    if result.report_path is None:
        return
    line(f"report:  {result.report_path}  (the program that just ran: who holds memory, what was decided, and why)")
    command, programs = f"{os.path.relpath(sys.executable)} -m dovetail", config.out_dir / "programs"
    line("Try next:")
    line(f"  {command} explain {programs}")
    line(f"  {command} draw {programs} --to {config.out_dir / 'program.svg'}")
    line(f"  {command} doctor")


def _sections(config: DemoConfig, plan: TrainingPlan, columns: tuple[Column, ...]) -> Mapping[str, Mapping[str, str]]:
    model = plan.model
    return {
        "Configuration": {
            "model": f"GPT, {model.layers} layers, width {model.width}, {model.heads} heads, dropout {model.dropout}",
            "tokens": f"bytes, batches of {plan.batch} x {model.context}",
            "optimizer": f"AdamW, learning rate {plan.learning_rate}",
            "steps": f"{len(columns[0].losses)}, per column, in turn",
            "seed": str(plan.seed),
            "memory": "exact peak of tensor allocations in one untimed step",
        },
        "Environment": {
            "dovetail": _own_version(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "system": platform.platform(),
            "processor": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "threads": str(config.threads),
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    }


def _own_version() -> str:
    try:
        return importlib.metadata.version("dovetail")
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"
