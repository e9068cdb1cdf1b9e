"""A tour: train a small model, look at what the compiler did, break it on purpose, and find the mistake.

    python examples/look_inside.py              # everything goes to a new folder, which is named at the end
    python examples/look_inside.py --out tour   # or to one of yours, which must not exist yet

The mistake is in `wrong_gelu.py` beside this file: an executor that is handed to `dovetail.compile`, as any of yours
can be. Nothing of dovetail is changed for the tour. The exit status is 0 when everything was found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import dovetail
from dovetail.inspect.bisect import BisectReport, bisect
from dovetail.inspect.draw import draw
from dovetail.inspect.dump_folder import read_dump
from dovetail.inspect.minify import Minified, minify
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.minify_oracles import CheckFile
from dovetail.inspect.minify_script import Reproducer, write_reproducer
from dovetail.inspect.replay import ReplayRow, replay
from wrong_gelu import WrongGelu

HERE = Path(__file__).resolve().parent
EXECUTOR = "wrong_gelu.py"


class Block(torch.nn.Module):
    """A residual block, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide, self.narrow = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows in, rows out."""
        hidden = torch.nn.functional.gelu(self.wide(self.norm(x)))
        made: torch.Tensor = x + self.narrow(hidden)
        return made


class Classifier(torch.nn.Module):
    """Blocks and a loss."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(width), Block(width), Block(width))
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return torch.nn.functional.cross_entropy(self.head(self.blocks(x)), labels)


def new_model() -> Classifier:
    """The same weights each time."""
    torch.manual_seed(0)
    return Classifier()


def main() -> None:
    """The tour."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a new folder for what is written; one is made if not given")
    out = parser.parse_args().out
    if out is not None and out.exists():
        parser.error(f"{out} exists, and nothing is written over: give another folder")
    folder = Path(tempfile.mkdtemp(prefix="look-inside-")) if out is None else out
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    batch = torch.randn(32, 64), torch.randint(0, 10, (32,))
    shutil.copy(HERE / EXECUTOR, folder)
    eager = trained_step(new_model(), batch)
    print(f"Everything is written to {folder}. The commands below do the same, there.")

    good = show_a_right_step(folder, batch, eager)
    show_its_explanation(folder, good, batch)
    show_a_wrong_step(folder, batch, eager)
    rows = show_replay(folder)
    report = show_bisect(folder)
    found, reproducer = show_minify(folder)
    show_the_end(folder, rows, report, found, reproducer)


# --- the steps --------------------------------------------------------------------------------------------------------


def trained_step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...], **options: Any) -> list[torch.Tensor]:
    """The loss of one step and every weight after it; compiled, when there are options."""
    called = dovetail.compile(model, **options) if options else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = called(*batch)
    loss.backward()
    optimizer.step()
    return [loss.detach(), *[weight.detach() for weight in model.parameters()]]


def show_a_right_step(folder: Path, batch: tuple[torch.Tensor, ...], eager: list[torch.Tensor]) -> torch.nn.Module:
    """One training step, compiled."""
    model = new_model()
    with section(
        "Train one step, and keep what the compiler did", "DOVETAIL_DUMP=right DOVETAIL_DUMP_CALLS=1 python train.py"
    ):
        compiled = trained_step(model, batch, dump=str(folder / "right"), dump_calls=True)
        require(apart(eager, compiled) == 0, "a compiled step gives eager's loss and weights, bit by bit")
        (compilation,) = read_dump(folder / "right")
        say(f"Loss {compiled[0]:.6f}; it and all {len(eager) - 1} weights are eager's, bit by bit.")
        say(
            f"right/{compilation.folder.name} has the program after each of {len(compilation.steps)} steps, as text, as"
        )
        say("JSON and as a diff, and the tensors of this call. Nothing is pickled.")
    return model


def show_its_explanation(folder: Path, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> None:
    """What was decided."""
    with section("Explain it", "dovetail explain right --html report.html; dovetail draw right --to program.svg"):
        found = dovetail.explain(model, *batch)
        found.html(folder / "report.html")
        (compilation,) = read_dump(folder / "right")
        program = compilation.of_part("forward")[-1].program
        assert program is not None, "steps of a part have one"
        draw(program, to=folder / "program.svg")
        for line in found.text().splitlines()[:3]:
            say(line)
        for kind in ("saved", "in place", "copied"):
            rows = [row for row in found.decisions if row.kind == kind]
            say(f"  {kind:9} {len(rows):>5} values, {sum(row.bytes for row in rows):>14,} bytes")
        say("report.html has all of it, with a map of memory; program.svg has each storage as a lane.")
        require((folder / "report.html").stat().st_size > 10_000, "the report is written")


def show_a_wrong_step(folder: Path, batch: tuple[torch.Tensor, ...], eager: list[torch.Tensor]) -> None:
    """The same step with a mistake in the compiler."""
    with section("Break the compiler on purpose", "DOVETAIL_DUMP=wrong DOVETAIL_DUMP_CALLS=1 python train.py"):
        say("dovetail.compile(model, executors=[WrongGelu()]) takes a shortcut for every GELU.")
        options = {"executors": [WrongGelu()], "dump": str(folder / "wrong"), "dump_calls": True}
        wrong = trained_step(new_model(), batch, **options)
        distance = apart(eager, wrong)
        require(0 < distance < 0.1, "results differ a little")
        say(
            f"Loss {wrong[0]:.6f}, not {eager[0]:.6f}; weights are off by up to {distance:.1e}. And nothing was raised."
        )


def show_replay(folder: Path) -> list[ReplayRow]:
    """What was dumped, run again."""
    with section("Replay it: is it a rewrite of the program, or what ran it?", "dovetail replay wrong"):
        rows = replay(folder / "wrong")
        equal = sum(row.verdict == "equal" for row in rows)
        say(f"{equal} steps and calls are equal to what they should be. These are not:")
        for row in rows:
            if row.verdict == "differs":
                say(f"  {row.step}: {row.detail}")
        say("So each rewrite is right, and the code that ran the program is not.")
        require([row.step for row in rows if row.verdict == "differs"][:1] == ["forward call"], "the call differs")
        return rows


def show_bisect(folder: Path) -> BisectReport:
    """The step and the node."""
    with section("Bisect it: which step, which node?", f"dovetail bisect wrong --executor {EXECUTOR}:WrongGelu"):
        (report,) = bisect(folder / "wrong", executors=[WrongGelu()])
        for line in str(report).splitlines():
            say(line.replace(f"{HERE}/", ""))
        return report


def show_minify(folder: Path) -> tuple[Minified, Reproducer]:
    """The smallest program that shows it."""
    with section("Minify it", f"dovetail minify wrong --check {EXECUTOR}:fails --out small"):
        source = read_source(folder / "wrong")
        check = CheckFile(folder / EXECUTOR, "fails")
        found = minify(source.program, source.inputs, check)
        for node in found.program.nodes:
            say(f"left: {node.target} of {', '.join(str(value.meta) for value in node.operands())}")
        say(str(found))
        reproducer = write_reproducer(folder / "small", found, check, 120)
        say(f"small/repro.py was run once in a process of its own: {reproducer.ending}")
        return found, reproducer


def show_the_end(
    folder: Path, rows: list[ReplayRow], report: BisectReport, found: Minified, reproducer: Reproducer
) -> None:
    """Whether everything was found, and where it is."""
    require(rows[0].verdict == "ran", "the recorded program runs")
    require(report.step == "code", "bisect names the step: the generated code")
    culprit = report.culprit
    require(culprit is not None and culprit.value == "gelu", "bisect names the node: the first GELU")
    require(len(found.program.nodes) <= 8, "minify leaves a handful of nodes")
    require(reproducer.is_confirmed, "the reproducer fails as it should")
    print(f"\nEverything was found. It is all in {folder}:\n")
    for name, what in (
        ("report.html", "open it in a browser: point at the map of memory"),
        ("program.svg", "the forward program as a drawing"),
        ("right/000-.../", "read 000-recorded.py, then the .diff files in order: what each pass did"),
        ("small/repro.py", "the reproducer: run it, read it"),
    ):
        print(f"  {name:15} {what}")
    print("\ndocs/instruments.md says more; `dovetail --help` lists the commands.")


# --- how it is told ---------------------------------------------------------------------------------------------------

_NUMBER = iter(range(1, 100))


@contextmanager
def section(title: str, command: str) -> Iterator[None]:
    """A step of the tour. command: what does the same in a shell."""
    print(f"\n{next(_NUMBER)}. {title}\n   $ {command}", flush=True)
    yield


def say(text: str) -> None:
    """One line."""
    print(f"   {text}", flush=True)


def require(is_so: bool, what: str) -> None:
    """End the tour when something was not found."""
    if not is_so:
        sys.exit(f"\nThe tour failed: it is not so that {what}.")


def apart(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest distance of two elements."""
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


if __name__ == "__main__":
    main()
