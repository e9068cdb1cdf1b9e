"""Measure how long tensors take to write, to check and to get ready, next to torch.save, torch.load and safetensors.

Every way but `.dovetail` hands out bytes that it did not look at: the time that `open_container` takes is that of a
checksum over all of them. All files were just written, so they are read from memory and not from the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.tables import write_tables
from dovetail.artifact.container import open_container, write_container
from dovetail.artifact.tensors import load_tensors, save_tensors

Tensors = dict[str, torch.Tensor]
_REPEATS = 5
_HEAD = ["way", "MB", "write ms", "read ms", "read and sum ms"]


@dataclass(frozen=True, slots=True)
class FileCost:
    """One way of keeping tensors. Times are the least of some repeats; used_s: until a sum over all was taken, too."""

    way: str
    megabytes: int
    write_s: float
    read_s: float
    used_s: float


def measure_files(megabytes: int) -> list[FileCost]:
    """Each way with as many tensors of 4 MB as make up this size."""
    tensors = {f"weight.{number}": torch.randn(1 << 20) for number in range(max(1, megabytes // 4))}
    with TemporaryDirectory() as folder:
        return [
            _measured(way, megabytes, tensors, Path(folder) / "file", write, read)
            for way, write, read in (
                ("dovetail", _write, lambda path: load_tensors(open_container(path))),
                ("dovetail, verify=full", _write, lambda path: load_tensors(open_container(path, verify="full"))),
                ("safetensors", lambda path, held: save_file(held, path), load_file),
                ("torch.save", lambda path, held: torch.save(held, path), torch.load),
                ("torch.save, mmap", lambda path, held: torch.save(held, path), lambda p: torch.load(p, mmap=True)),
            )
        ]


def _write(path: Path, tensors: Tensors) -> None:
    write_container(path, save_tensors(tensors))


def _measured(
    way: str,
    megabytes: int,
    tensors: Tensors,
    path: Path,
    write: Callable[[Path, Tensors], None],
    read: Callable[[Path], Tensors],
) -> FileCost:
    write_s = _least(lambda: write(path, tensors), 2)
    read_s = _least(lambda: read(path), _REPEATS)
    used_s = _least(lambda: [tensor.sum() for tensor in read(path).values()], _REPEATS)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read(path).items()), way
    return FileCost(way, megabytes, write_s, read_s, used_s)


def _least(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def write_artifact_report(costs: Sequence[FileCost], machine: dict[str, Any], out: Path) -> None:
    """Print and write one table."""
    rows = [
        [c.way, str(c.megabytes), *(f"{1000 * seconds:.1f}" for seconds in (c.write_s, c.read_s, c.used_s))]
        for c in costs
    ]
    record = {"rows": [asdict(cost) for cost in costs]}
    write_tables("artifact", {"Tensors in a file": (_HEAD, rows)}, record, machine, out)
