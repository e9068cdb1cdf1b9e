"""`graph_dumper_aot`: write down the forward, backward and joint program of every graph that Dynamo finds.

    folder/name/name_forward_0.py                     the program, a file that runs by itself
    folder/name/name_forward_0.json                   the program, and what its inputs are like; `get_inputs` makes some
    folder/name/name_forward_0.inputs.safetensors     the inputs of the first call, on demand
    folder/name/name_forward_0.results.safetensors    what it gave

`dovetail replay folder` runs them again, and compares. Nothing is pickled, and nothing that lies there is written over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from dovetail.artifact.program_json import program_to_json
from dovetail.compat.described import describe_inputs
from dovetail.compat.script import script_text
from dovetail.errors import BadOptionValue, CompilerUnavailable, DovetailError
from dovetail.frontends.aot import aot_module_simplified
from dovetail.ir.fx_lift import lift
from dovetail.pipeline.dump import WatchedCall

logger = logging.getLogger("dovetail")


def graph_dumper_aot(
    current_name: str, folder_name: str | Path, dump_example_input: bool = False
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for `torch.compile` that writes every program down, and runs it as it is.

    current_name: of the folder in `folder_name`, and the beginning of every file's name. dump_example_input: write the
    inputs and results of each program's first call, too.
    Raises: BadOptionValue for a name that is not a name of a file.
    """
    if current_name in ("", ".", "..") or Path(current_name).name != current_name:
        expected = "letters, digits, dashes"
        raise BadOptionValue(option="current_name", value=current_name, reason="files are named so", expected=expected)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        writer = _Writer(current_name, Path(folder_name) / current_name, dump_example_input)
        return aot_module_simplified(
            gm, example_inputs, writer.compiler("forward"), writer.compiler("backward"), joint=writer.show_joint
        )

    return backend


class _Writer:
    """Writes the programs of one graph, which get one number; further ones of a kind get a second."""

    def __init__(self, name: str, folder: Path, with_calls: bool) -> None:
        self._name = name
        self._folder = folder
        self._with_calls = with_calls
        self._number = _reserve(folder, name)
        self._seen: dict[str, int] = {}

    def compiler(self, kind: str) -> Callable[..., Any]:
        """A compiler that writes a half down and runs it as it is."""

        def compile_half(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            stem = self._write(kind, gm, inputs)
            return WatchedCall(gm, stem) if self._with_calls else gm

        return compile_half

    def show_joint(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Write the program down that is about to be split."""
        self._write("joint", gm, inputs)

    def _write(self, kind: str, gm: fx.GraphModule, inputs: Sequence[Any]) -> Path:
        count = self._seen[kind] = self._seen.get(kind, -1) + 1
        again = f"_{count}" if count else ""
        stem = self._folder / f"{self._name}_{kind}_{self._number}{again}"
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        is_empty = not any(node.op.startswith("call") for node in gm.graph.nodes)
        title = f"{kind.capitalize()} program of {self._name}, graph {self._number}."
        if is_empty:
            title += " It is empty: no operator runs."
            logger.warning("%s: the %s program of graph %d has no operators", self._name, kind, self._number)
        file = stem.with_name(f"{stem.name}.py")
        try:
            text = script_text(gm, inputs, file.name, title)
        except CompilerUnavailable as error:  # text to read, then
            text = f"# {title} It does not run by itself: {error.facts['reason']}.\n{gm.code}"
        file.write_text(text, encoding="utf-8")
        described = describe_inputs(names, inputs)
        data = {"kind": kind, "graph": self._number, "empty": is_empty, "inputs": described, **_program(gm, inputs)}
        stem.with_name(f"{stem.name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return stem


def _program(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, object]:
    """The program as data for `replay`, or why there is none."""
    try:
        lifted = lift(gm, inputs)
        return {"program": program_to_json(lifted.program), "hints": lifted.hints(), "nodes": len(lifted.program.nodes)}
    except DovetailError as error:
        return {"not_serializable": str(error).partition("\n")[0]}


def _reserve(folder: Path, name: str) -> int:
    """A number that no other graph in the folder has, not one of another process either."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            (folder / f"{name}_{number}.txt").open("x", encoding="utf-8").close()
            return number
        except FileExistsError:
            number += 1
