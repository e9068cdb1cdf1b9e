"""`graph_dumper_aot`: write down the forward, backward and joint program of every graph that Dynamo finds.

    folder/name/name_forward_0.py             the program, a file that runs by itself
    folder/name/name_forward_0.json           what its inputs are like; `get_inputs` makes some
    folder/name/name_forward_0.safetensors    the inputs of the first call, on demand

Nothing is pickled, and nothing that lies there is written over.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dovetail.compat.described import describe_inputs
from dovetail.compat.script import script_text
from dovetail.errors import BadOptionValue, CompilerUnavailable
from dovetail.frontends.aot import aot_module_simplified

logger = logging.getLogger("dovetail")


def graph_dumper_aot(
    current_name: str, folder_name: str | Path, dump_example_input: bool = False
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A back end for `torch.compile` that writes every program down, and runs it as it is.

    current_name: of the folder in `folder_name`, and the beginning of every file's name. dump_example_input: write the
    inputs of each program's first call, too; needs the package safetensors.
    Raises: CompilerUnavailable without that package; BadOptionValue for a name that is no name of a file.
    """
    if current_name in ("", ".", "..") or Path(current_name).name != current_name:
        expected = "letters, digits, dashes"
        raise BadOptionValue(option="current_name", value=current_name, reason="files are named so", expected=expected)
    save = _saver() if dump_example_input else None

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        writer = _Writer(current_name, Path(folder_name) / current_name, save)
        return aot_module_simplified(
            gm, example_inputs, writer.compiler("forward"), writer.compiler("backward"), joint=writer.show_joint
        )

    return backend


class _Writer:
    """Writes the programs of one graph, which get one number; further ones of a kind get a second."""

    def __init__(self, name: str, folder: Path, save: Callable[..., Any] | None) -> None:
        self._name = name
        self._folder = folder
        self._save = save
        self._number = _reserve(folder, name)
        self._seen: dict[str, int] = {}

    def compiler(self, kind: str) -> Callable[..., Any]:
        """A compiler that writes a half down and runs it as it is."""

        def compile_half(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            stem = self._write(kind, gm, inputs)
            names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
            save = self._save
            return gm if save is None else _saving(gm, names, stem.with_name(f"{stem.name}.safetensors"), save)

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
        data = {"program": kind, "graph": self._number, "empty": is_empty, "inputs": describe_inputs(names, inputs)}
        stem.with_name(f"{stem.name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return stem


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


def _saving(gm: fx.GraphModule, names: Sequence[str], path: Path, save: Callable[..., Any]) -> Callable[..., Any]:
    """The graph module, which writes down the tensors of its first call."""
    done = False

    def run(*inputs: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            tensors = {n: x.detach().clone().contiguous() for n, x in zip(names, inputs, strict=True) if _is_tensor(x)}
            save(tensors, str(path))
        return gm(*inputs)

    return run


def _is_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor)


def _saver() -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = importlib.import_module("safetensors.torch").save_file
    except ImportError as error:
        raise CompilerUnavailable(
            name="graph_dumper_aot(dump_example_input=True)",
            reason="the package safetensors is not installed",
            because="tensors are written without pickle",
            hint="pip install safetensors, or leave dump_example_input out and call get_inputs on the JSON file",
        ) from error
    return found
