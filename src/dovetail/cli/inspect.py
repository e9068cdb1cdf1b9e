"""`dovetail inspect`: what is in a `.dovetail` file."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.cli.output import Allow, AsJson, print_json
from dovetail.errors import BadOptionValue
from dovetail.inspect.frozen_file import FrozenFile, MethodRow, ProgramRow, inspect_file
from dovetail.pipeline.memory_limit import readable

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `frozen.save(path)` wrote.")]
_Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=NUMBER", help="A size symbol's number, for the memory of a call; repeatable."),
]
_All = Annotated[bool, typer.Option("--all", help="List all operators and constants, not only the first of them.")]
_SHOWN = 12


def inspect_command(
    file: _File, size: _Sizes = None, everything: _All = False, as_json: AsJson = False, allow: Allow = None
) -> None:
    """Show what is in a frozen program's file, without running it: arguments and results, operators, constants, memory.

    FILE is checked as `dovetail.load` checks it. It may have been written by another torch, or for a device that this
    machine does not have.

    Exit status: 0; 2 for a file that is damaged, was not written by `save`, or calls what no file may call.
    """
    found = inspect_file(file, allow=allow or (), sizes=dict(map(_size, size or ())))
    if as_json:
        print_json(asdict(found))
        return
    console = Console(soft_wrap=True)
    for line in _head(found):
        console.print(_plain(line))
    for method in found.methods:
        console.print()
        for line in _method_lines(method):
            console.print(_plain(line))
    console.print(_operators(found, everything))
    console.print(_constants(found, everything))


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isascii() or not number.isdigit():
        reason, expected = "it is not a name and a number", "a size symbol that `dovetail inspect FILE` shows: s0=32"
        raise BadOptionValue(option="--size", value=text, reason=reason, expected=expected)
    return name, int(number)


def _plain(line: str) -> Text:
    """Text as it is, without what a terminal would carry out."""
    return Text("".join(character if character.isprintable() else "?" for character in line))


def _head(found: FrozenFile) -> list[str]:
    return [
        f"{found.path}: {found.model}, {readable(found.bytes)}, format {found.format_version}, torch {found.torch}",
        f"constants {readable(found.constant_bytes)}"
        + (f", weights from before folding {readable(found.source_bytes)}" if found.source_bytes else ""),
    ]


def _method_lines(method: MethodRow) -> list[str]:
    lines = [method.signature, f"  passes: {', '.join(method.passes) or 'none but those of every program'}"]
    lines += [f"  {note}" for note in method.specialized]
    for program in method.programs:
        lines += _program_lines(program)
    return lines


def _program_lines(program: ProgramRow) -> list[str]:
    facts = f" where {', '.join(program.facts)}" if program.facts else ""
    lines = [f"  {program.name}: {program.nodes} operators{facts}"]
    lines += [f"    {name}: {what}" for name, what in program.takes.items()]
    lines += [f"    -> {result}" for result in program.gives]
    if program.peak_bytes is None:
        return [*lines, "    memory: not known for these sizes"]
    sizes = ", ".join(f"{name} = {number}" for name, number in program.sizes.items())
    arena = "" if program.arena_bytes is None else f", of which {readable(program.arena_bytes)} can lie in one block"
    return [*lines, f"    memory of a call{f' at {sizes}' if sizes else ''}: {readable(program.peak_bytes)}{arena}"]


def _operators(found: FrozenFile, everything: bool) -> Table:
    counts = Counter[str]()
    for method in found.methods:
        counts.update(method.programs[0].operators)
    table = Table(box=box.SIMPLE_HEAD, title="Operators of each method's first program", title_justify="left")
    table.add_column("operator")
    table.add_column("calls", justify="right")
    rows = counts.most_common(None if everything else _SHOWN)
    for name, count in rows:
        table.add_row(_plain(name), str(count))
    if len(counts) > len(rows):
        table.add_row(f"{len(counts) - len(rows)} others", str(sum(counts.values()) - sum(count for _, count in rows)))
    return table


def _constants(found: FrozenFile, everything: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Constants, the largest first", title_justify="left")
    for name in ("constant", "tensor", "bytes", ""):
        table.add_column(name, justify="right" if name == "bytes" else "left", overflow="fold")
    shown = found.constants if everything else found.constants[:_SHOWN]
    for row in shown:
        weights = ", ".join(row.weights)
        table.add_row(_plain(weights or row.name), row.tensor, f"{row.bytes:,}", "state" if row.is_state else "")
    left = found.constants[len(shown) :]
    if left:
        table.add_row(f"{len(left)} others", "", f"{sum(row.bytes for row in left):,}", "")
    return table
