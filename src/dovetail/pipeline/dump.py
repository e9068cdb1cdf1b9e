"""Write what every step made into a folder: `NNN-<step>.py` (runs by itself), its diff to the step before, and JSON.

The scripts print the shapes of the outputs for random inputs. Folders of several programs are numbered by compilation.
The JSON has the program itself, for `dovetail replay` and `dovetail bisect`. With `calls`, the arguments and results of
each half's first call are written too: `forward.inputs.safetensors`, `forward.results.safetensors`, and so on.
"""

from __future__ import annotations

import difflib
import itertools
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dovetail.analysis.liveness import last_uses, simulate_peak
from dovetail.artifact.program_json import program_to_json
from dovetail.deferred import deferred
from dovetail.errors import NotSerializable
from dovetail.execute.protocol import RunnableProgram
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ir.text import emit, plain_call
from dovetail.pipeline.compile_trace import CompileTrace, Step
from dovetail.torch_compat.fakes import is_fake

if TYPE_CHECKING:
    from dovetail.artifact import call
    from dovetail.execute.arena import ArenaProgram
    from dovetail.execute.compiled import CompiledProgram
    from dovetail.pipeline import dump_folder
else:
    call, dump_folder = deferred("dovetail.artifact.call"), deferred("dovetail.pipeline.dump_folder")

_SERIAL = itertools.count()

logger = logging.getLogger("dovetail")

JOINT, FORWARD, BACKWARD = "joint", "forward", "backward"
_HEADER = '''"""{title}"""
import math
import operator

import torch

from dovetail.ops import prims
from dovetail.testing.samples import run_on_samples
'''


def _docstring(text: str) -> str:
    """The text as it may stand between quotes of a docstring."""
    return repr(text)[1:-1].replace('"', r"\"")


class WatchedCall:
    """A function that writes down the arguments and results of its first call: the generator's state comes last.

    stem: files are `<stem>.inputs.safetensors` and `<stem>.results.safetensors`. What cannot be written (subclasses,
    say) is left out with a warning.
    """

    def __init__(self, function: Callable[..., Any], stem: Path) -> None:
        self._function = function
        self._stem = stem
        self._is_done = False

    def __call__(self, *inputs: Any) -> Any:
        """Call the function."""
        is_written = self.before(inputs)
        results = self._function(*inputs)
        if is_written:
            self.after(results if isinstance(results, tuple | list) else [results])
        return results

    def before(self, inputs: Sequence[Any]) -> bool:
        """Write the arguments down if this is the first call; whether they were. Verification calls with fakes."""
        if any(isinstance(item, torch.Tensor) and is_fake(item) for item in inputs):
            return False
        is_first, self._is_done = not self._is_done, True
        return is_first and self._save("inputs", [*inputs, torch.get_rng_state()])

    def after(self, results: Sequence[Any]) -> None:
        """Write the results down."""
        self._save("results", results)

    def _save(self, what: str, items: Sequence[Any]) -> bool:
        try:
            call.save_call(self._stem.with_name(f"{self._stem.name}.{what}.safetensors"), items)
        except (NotSerializable, OSError) as error:  # state may be written already: the call goes on
            logger.warning("the %s of %s cannot be written: %s", what, self._stem.name, error)
            return False
        return True


class WatchedProgram:
    """A program that writes down its first call."""

    def __init__(self, code: RunnableProgram, stem: Path) -> None:
        self._code = code
        self._watch = WatchedCall(code, stem)

    @property
    def program(self) -> Program:
        """What runs."""
        return self._code.program

    @property
    def source(self) -> str:
        """What runs, as text."""
        return self._code.source

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run. inputs: one per program input, in order; emptied."""
        is_written = self._watch.before(inputs)
        results = self._code(inputs)
        if is_written:
            self._watch.after(results)
        return results


class Dump:
    """Writes steps into `folder / <serial>-<name>`; with folder None, writes nothing.

    calls: write calls as well. like: the dump in which calls of the forward program are, if not in this one.
    compile_trace: keeps the steps in memory. leaves: see `Lowering`.
    """

    def __init__(
        self,
        folder: str | None,
        name: str,
        hints: Mapping[str, Number],
        calls: bool = False,
        like: Dump | None = None,
        compile_trace: CompileTrace | None = None,
        leaves: frozenset[int] = frozenset(),
    ) -> None:
        self._calls = calls
        self._like = like
        self._hints = hints
        self._lowering = None if compile_trace is None else compile_trace.begin(name, hints, leaves)
        self._count = 0
        self._name = name
        self._previous = ""
        self._folder = None if folder is None else Path(folder) / f"{next(_SERIAL):03}-{name}"

    @property
    def name(self) -> str:
        """Of the folder."""
        return "" if self._folder is None else self._folder.name

    def step(self, name: str, program: Program, record: object = None, part: str = JOINT, **more: object) -> None:
        """Write one step.

        record: a dataclass with what the step did. part: what the program is, both halves or one. more: further facts.
        """
        if self._lowering is not None:
            self._lowering.steps.append(Step(name, program, record))
        if self._folder is None:
            return
        source = emit(program, plain_call, last_uses(program))
        peak = simulate_peak(program, self._hints)
        facts: dict[str, object] = {
            "name": program.name,
            "compilation": self._name,
            "part": part,
            "stage": program.stage.value,
            "nodes": len(program.nodes),
            "peak_bytes": peak.peak_bytes,
            "threads": torch.get_num_threads(),
            "hints": dict(self._hints),
            "forward_call_in": "" if self._like is None else self._like.name,
            **more,
            "signature": {
                "inputs": [str(role) for role in program.signature.inputs],
                "outputs": [str(role) for role in program.signature.outputs],
            },
        }
        if is_dataclass(record) and not isinstance(record, type):
            facts["step"] = asdict(record)
        try:
            facts["program"] = program_to_json(program)
        except NotSerializable as error:
            facts["not_serializable"] = error.facts["reason"]
        self._write(name, self._script(name, program, source.text, source.globals), facts)

    def computed_from(self, sources: Collection[str]) -> None:
        """Note the residuals that values are computed again from."""
        if self._lowering is not None:
            self._lowering.sources = frozenset(sources)

    def watched(self, program: RunnableProgram, part: str) -> RunnableProgram:
        """The code of a half, which writes down its first call where calls are wanted."""
        if self._folder is None or not self._calls:
            return program
        with dump_folder.clear_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        return WatchedProgram(program, self._folder / part)

    def text(self, name: str, text: str) -> None:
        """Write one more file of Python source."""
        if self._folder is not None:
            self._write(name, text, {})

    def code(self, name: str, code: CompiledProgram | ArenaProgram) -> None:
        """Write the source of a program, and what runs groups of its nodes, if anything does."""
        self.text(f"code-{name}", code.source)
        if self._folder is not None:
            for number, (_, group) in enumerate(sorted(code.executors.groups.items())):
                self._write_file(f"native-{name}-{number}.txt", group.listing())

    def _script(self, name: str, program: Program, text: str, named: Mapping[str, object]) -> str:
        lines = [_HEADER.format(title=_docstring(f"{program.name} after {name}"))]
        lines += [f"{key} = {_literal(value)}" for key, value in named.items()]
        lines += ["", "", text, ""]
        inputs = ",\n        ".join(f"{value.name!r}: {_describe(value.meta)}" for value in program.inputs)
        lines += ['if __name__ == "__main__":', f"    run_on_samples(run, {{\n        {inputs}\n    }})", ""]
        return "\n".join(lines)

    def _write(self, name: str, text: str, facts: Mapping[str, object]) -> None:
        stem = f"{self._count:03}-{name}"
        self._write_file(f"{stem}.py", text)
        if self._count:
            difference = difflib.unified_diff(self._previous.splitlines(True), text.splitlines(True), "before", name)
            self._write_file(f"{stem}.diff", "".join(difference))
        if facts:
            self._write_file(f"{stem}.json", json.dumps(facts, indent=2, default=str) + "\n")
        self._previous = text
        self._count += 1

    def _write_file(self, name: str, text: str) -> None:
        assert self._folder is not None, "checked by the callers"
        with dump_folder.clear_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(text, encoding="utf-8", errors="replace")


def _literal(value: object) -> str:
    text = repr(value)
    return f"torch.{text}" if text.startswith("device(") else f"None  # {text}"


def _describe(meta: object) -> str:
    shape = getattr(meta, "shape", None)
    if shape is None:
        return repr(str(getattr(meta, "expr", 2)))
    stride, dtype, device = getattr(meta, "stride", ()), getattr(meta, "dtype", None), getattr(meta, "device", None)
    return f"({[str(s) for s in shape]}, {[str(s) for s in stride]}, {dtype}, '{device}')"
