"""Write what every step made into a folder: `NNN-<step>.py` (runs by itself), its diff to the step before, and JSON.

The scripts print the shapes of the outputs for random inputs. Folders of several programs are numbered by compilation.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path

from dovetail.analysis.liveness import last_uses, simulate_peak
from dovetail.artifact.program_json import program_to_json
from dovetail.errors import NotSerializable
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ir.text import emit, plain_call

_SERIAL = itertools.count()
_HEADER = '''"""{title}"""
import math
import operator

import torch

from dovetail.ops import prims
from dovetail.testing.samples import run_on_samples
'''


class Dump:
    """Writes steps into `folder / <serial>-<name>`; with folder None, writes nothing."""

    def __init__(self, folder: str | None, name: str, hints: Mapping[str, Number]) -> None:
        self._hints = hints
        self._count = 0
        self._previous = ""
        self._folder = None if folder is None else Path(folder) / f"{next(_SERIAL):03}-{name}"

    def step(self, name: str, program: Program, record: object = None) -> None:
        """Write one step. record: a dataclass with what the step did."""
        if self._folder is None:
            return
        source = emit(program, plain_call, last_uses(program))
        peak = simulate_peak(program, self._hints)
        facts: dict[str, object] = {
            "name": program.name,
            "stage": program.stage.value,
            "nodes": len(program.nodes),
            "peak_bytes": peak.peak_bytes,
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

    def text(self, name: str, text: str) -> None:
        """Write one more file of Python source."""
        if self._folder is not None:
            self._write(name, text, {})

    def _script(self, name: str, program: Program, text: str, named: Mapping[str, object]) -> str:
        lines = [_HEADER.format(title=f"{program.name} after {name}")]
        lines += [f"{key} = {_literal(value)}" for key, value in named.items()]
        lines += ["", "", text, ""]
        inputs = ",\n        ".join(f"{value.name!r}: {_describe(value.meta)}" for value in program.inputs)
        lines += ['if __name__ == "__main__":', f"    run_on_samples(run, {{\n        {inputs}\n    }})", ""]
        return "\n".join(lines)

    def _write(self, name: str, text: str, facts: Mapping[str, object]) -> None:
        assert self._folder is not None, "checked by the callers"
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self._count:03}-{name}"
        (self._folder / f"{stem}.py").write_text(text)
        if self._count:
            difference = difflib.unified_diff(self._previous.splitlines(True), text.splitlines(True), "before", name)
            (self._folder / f"{stem}.diff").write_text("".join(difference))
        if facts:
            (self._folder / f"{stem}.json").write_text(json.dumps(facts, indent=2, default=str) + "\n")
        self._previous = text
        self._count += 1


def _literal(value: object) -> str:
    text = repr(value)
    return f"torch.{text}" if text.startswith("device(") else f"None  # {text}"


def _describe(meta: object) -> str:
    shape = getattr(meta, "shape", None)
    if shape is None:
        return repr(str(getattr(meta, "expr", 2)))
    stride, dtype, device = getattr(meta, "stride", ()), getattr(meta, "dtype", None), getattr(meta, "device", None)
    return f"({[str(s) for s in shape]}, {[str(s) for s in stride]}, {dtype}, '{device}')"
