"""What searches over random programs share: where they stand, what their commands take, and going on from a file."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch


@dataclass
class Standing:
    """Where a search stands. next: the first seed that was not tried. failures: label -> what is wrong."""

    next: int
    tried: int = 0
    failures: dict[str, str] = field(default_factory=dict)


S = TypeVar("S", bound=Standing)

_ROOT = Path(__file__).resolve().parent.parent
# The environment in which the file of a failing program runs.
ON_PATH = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """The arguments that every search takes. description: the docstring of the module."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(description or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--programs", type=int, help="stop when so many were tried, those before --state included")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th seed, beginning with the i-th (from 0)")
    parser.add_argument("--state", type=Path, help="file to go on from, and to write")
    parser.add_argument("--first", type=int, default=1000, help="the first seed of a new search")
    return parser


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """One thread, as other searches run beside it, and no warnings: fakes report what is refused."""
    logger = logging.getLogger("torch")
    threads, level = torch.get_num_threads(), logger.level
    torch.set_num_threads(1)
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        logger.setLevel(level)


def begin(options: argparse.Namespace, new: S) -> tuple[S, int]:
    """Where a search stands when it begins, by its arguments, and the step from seed to seed. new: of a new search."""
    index, shards = map(int, options.shard.split("/"))
    new.next = options.first + index
    if options.state is not None and options.state.exists():
        return type(new)(**json.loads(options.state.read_text())), shards
    return new, shards


def keep(options: argparse.Namespace, standing: Standing) -> None:
    """Write where the search stands, if it has a file: all of it, or nothing where the process ends meanwhile."""
    if options.state is not None:
        whole = options.state.with_name(f"{options.state.name}.new")
        whole.write_text(json.dumps(asdict(standing), indent=2) + "\n")
        whole.replace(options.state)
