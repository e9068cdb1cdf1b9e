"""Processes that form a process group, for tests: they run a function together, and none waits for ever."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_SECONDS = 60.0
_TO_START = 120.0


class Ranks:
    """Processes of one group. They stay until something fails."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def start(self) -> None:
        """Start the processes, unless they are there."""
        if self._processes:
            return
        context = multiprocessing.get_context("forkserver")  # which has imported torch: a rank starts at once
        sharded = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo")
        context.set_forkserver_preload(["dovetail", *sharded, __name__])
        store = os.path.join(tempfile.mkdtemp(), "store")
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            for rank in range(self.count):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, store, rank, self.count), daemon=True)
                process.start()
                there.close()
                self._processes.append(process)
                self._pipes.append(here)
            for pipe in self._pipes:
                if not pipe.poll(_TO_START):
                    self.end()
                    raise AssertionError(f"after {_TO_START} s ranks have not started")
                pipe.recv()
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def __call__(self, function: Callable[..., Any], *args: Any, seconds: float = _SECONDS) -> list[Any]:
        """Call `function(rank, *args)` on every rank; what each returns. A rank that raises fails the test."""
        found = self.outcomes(function, *args, seconds=seconds)
        for rank, outcome in enumerate(found):
            if isinstance(outcome, Failed):
                self.end()
                raise AssertionError(f"rank {rank}: {outcome.text}")
        return found

    def outcomes(self, function: Callable[..., Any], *args: Any, seconds: float = _SECONDS) -> list[Any]:
        """The same, where ranks may raise or die: `Failed` in the place of what they return."""
        self.start()
        for pipe in self._pipes:
            pipe.send((function, args))
        found: dict[int, Any] = {}
        end = time.monotonic() + seconds
        while len(found) < self.count:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(waiting, timeout=end - time.monotonic())
            if not ready:
                self.end()
                raise AssertionError(f"after {seconds} s, of {self.count} ranks only {sorted(found)} are done")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    found[rank] = self._pipes[rank].recv()
                except (EOFError, ConnectionError):
                    found[rank] = Failed("it has died")
        return [found[rank] for rank in range(self.count)]


class Failed:
    """What a rank has raised, as text."""

    def __init__(self, text: str, name: str = "") -> None:
        self.text, self.name = text, name


def _serve(pipe: Connection, store: str, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    Path(store).parent.mkdir(exist_ok=True)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=_SECONDS)
    )
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send(function(rank, *args))
            except BaseException as error:
                pipe.send(Failed("".join(traceback.format_exception(error)), type(error).__name__))


@contextlib.contextmanager
def of_ranks(count: int) -> Iterator[Ranks]:
    """Some ranks, until the end."""
    ranks = Ranks(count)
    try:
        yield ranks
    finally:
        ranks.end()
