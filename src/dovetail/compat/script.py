"""A graph module as a Python file that runs by itself, for a bug report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

from dovetail.compat.described import describe_inputs
from dovetail.errors import CompilerUnavailable
from dovetail.ir.prim import Prim

_HEADER = '''\
"""{title}

Run it: python {file}. Inputs are random, of the shapes that the graph was made for; shapes and sums of the results are
printed.
"""

import json
import math  # noqa: F401, some graphs read it
import operator  # noqa: F401

import torch
from torch import device, inf, nan  # noqa: F401
'''
_FOOTER = '''
INPUTS = json.loads("""
<INPUTS>
""")


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    made = []
    for entry in INPUTS:
        if entry["kind"] != "tensor":
            made.append(entry["value"])
            continue
        dtype = getattr(torch, entry["dtype"])
        tensor = torch.zeros(entry["shape"], dtype=dtype, device=entry["device"])
        if dtype.is_floating_point or dtype.is_complex:
            tensor.copy_(torch.rand(entry["shape"], generator=generator))
        overlaps = any(step == 0 and size > 1 for step, size in zip(entry["stride"], entry["shape"]))
        if tensor.stride() != tuple(entry["stride"]) and not overlaps:
            tensor = torch.empty_strided(
                entry["shape"], entry["stride"], dtype=dtype, device=entry["device"]
            ).copy_(tensor)
        made.append(tensor)
    return made


def main():
    with torch.no_grad():
        results = forward(Held(), *make_inputs())
    for place, result in enumerate(results if isinstance(results, (tuple, list)) else [results]):
        if isinstance(result, torch.Tensor):
            print(place, tuple(result.shape), result.dtype, result.sum(dtype=torch.complex128).real.item())
        else:
            print(place, result)


if __name__ == "__main__":
    main()
'''


def script_text(gm: fx.GraphModule, inputs: Sequence[Any], file: str, title: str = "A graph to look into.") -> str:
    """The text of the file.

    inputs: what describes the placeholders, as compilers are given it. Raises: CompilerUnavailable for a graph that
    holds modules or objects.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.set_codegen(CodeGen())
    for old, new in zip((n for n in gm.graph.nodes if n.op != "output"), graph.nodes, strict=False):
        new.name = old.name
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    written = graph.python_code("self")
    lines = [_HEADER.format(title=title, file=file)]
    lines += _needed(written.globals)
    lines += ["", "", "class Held:", '    """What the graph holds."""', ""]
    targets = dict.fromkeys(str(node.target) for node in gm.graph.nodes if node.op == "get_attr")
    lines += [f"    {target} = {_tensor(gm, target)}" for target in targets]
    lines += ["", written.src.strip(), ""]
    described = json.dumps(describe_inputs(names, inputs), indent=1)
    return "\n".join(lines) + _FOOTER.replace("<INPUTS>", described.replace("\\", "\\\\"))


def write_script(gm: fx.GraphModule, inputs: Sequence[Any], folder: str | Path, stem: str, title: str) -> Path:
    """Write the file under a name that nothing has in the folder, which is made; where it lies."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        path = place / f"{stem}_{number}.py"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(script_text(gm, inputs, path.name, title))
            return path
        except FileExistsError:
            number += 1


def _needed(names: dict[str, Any]) -> list[str]:
    """Imports and definitions for the names that the code of a graph reads."""
    known = {"torch", "device", "inf", "nan", "operator", "math", "json"}
    lines: list[str] = []
    prims = {name: value for name, value in names.items() if isinstance(value, Prim)}
    for prim in prims.values():
        if prim.python.startswith("torch.ops.higher_order"):
            raise _cannot(f"it holds the subgraphs of {prim.name}")
    if prims:
        lines += ["from dovetail.ops import prims", *(f"{name} = {value.python}" for name, value in prims.items())]
    for name, value in names.items():
        if name in known or name in prims:
            continue
        if value is type(None):
            lines.append(f"{name} = type(None)")
        elif getattr(value, "__module__", None) and getattr(value, "__qualname__", None):
            lines.append(f"from {value.__module__} import {value.__qualname__.partition('.')[0]} as {name}")
        elif getattr(value, "__name__", None) and not callable(value):
            lines.append(f"import {value.__name__} as {name}")
        else:
            raise _cannot(f"it calls {value!r}, which cannot be written as source")
    return lines


def _tensor(gm: fx.GraphModule, target: str) -> str:
    held: Any = gm
    for part in target.split("."):
        held = getattr(held, part)
    if not isinstance(held, torch.Tensor) or "." in target:
        raise _cannot(f"it holds {target}, a {type(held).__name__}")
    return f"torch.zeros({tuple(held.shape)}, dtype={held.dtype}, device={str(held.device)!r})"


def _cannot(reason: str) -> CompilerUnavailable:
    return CompilerUnavailable(
        name="a script for this graph",
        reason=reason,
        because="the file has to run by itself",
        hint="take the graph from a compiler under dovetail.aot_function, where everything is an input",
    )
