"""Run the transfers of a program: contents leave for a file, and come back, in a thread, while the program runs.

Each run has a thread and a file of its own. The thread moves a piece at a time, always of the transfer that the
program waits for first, so that nothing is in front of what is needed next. The program waits where it must; so what
memory is in use when does not depend on how fast the file is.
"""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from dovetail.analysis.region import extent_bytes
from dovetail.errors import InvalidProgram, OffloadFailed, OffloadFailedLate
from dovetail.errors.base import warn
from dovetail.execute.spill_file import SpillFile, UnnamedFile
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.text import Names
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED, TRANSFERS, memory_like, new_token

PIECE_BYTES = 2 * 1024**2
OpenFile: TypeAlias = Callable[[str, int], SpillFile]


@dataclass(frozen=True, slots=True)
class Spilled:
    """Contents that leave. name: of the value. size_bytes: of it. origin: the line of the user's that makes it.

    place: in the file. reads: how often they come back. positions: of the nodes that move them.
    """

    name: str
    size_bytes: int
    origin: str
    place: int
    reads: int
    positions: tuple[int, ...]


def spilled_values(program: Program) -> tuple[Spilled, ...]:
    """What leaves when a program runs, in order; those that are away at one time have places of their own."""
    nodes: dict[Value, list[tuple[int, Node]]] = {}  # by what leaves, through its tokens
    leaving: dict[Value, Value] = {}
    for at, node in enumerate(program.nodes):
        if node.target in TRANSFERS:
            first = node.operands()[0]
            value = first if node.target is SPILL else leaving[node.operands()[-1]]
            leaving.update(dict.fromkeys(node.results(), value))
            nodes.setdefault(value, []).append((at, node))
    free: list[tuple[int, int, int]] = []  # place, size, since when
    end, found = 0, list[Spilled]()
    for value, moves in nodes.items():
        size, (start, _), (last, _) = _size_of(program, value, moves), moves[0], moves[-1]
        fitting = min((slot for slot in free if slot[1] >= size and slot[2] < start), key=lambda s: s[1], default=None)
        if fitting is None:
            place, room = end, -(-size // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
            end += room
        else:
            free.remove(fitting)
            place, room, _ = fitting
        free.append((place, room, last))
        reads = sum(node.target is FETCH for _, node in moves)
        positions = tuple(at for at, _ in moves)
        found.append(Spilled(value.name, size, str(moves[0][1].origin), place, reads, positions))
    return tuple(found)


def _size_of(program: Program, value: Value, moves: Sequence[tuple[int, Node]]) -> int:
    """Bytes of what leaves. Raises: InvalidProgram where it would come back in another layout."""
    meta, extent = value.tensor, extent_bytes(value.tensor)
    layout = (list(meta.shape), list(meta.stride), meta.dtype)
    if extent is None or any(node.target is FETCH and node.args[1:] != layout for _, node in moves):
        rule, stage = "contents come back in the layout in which they left", program.stage.value
        raise InvalidProgram(program=program.name, stage=stage, rule=rule, detail=value.name)
    return extent[1] - extent[0]


class Transfers:
    """What runs the transfers of a program.

    values: that leave. file_bytes: of a file for them. calls: what each node of theirs calls.
    """

    def __init__(self, program: Program, folder: str, first_write: int, open_file: OpenFile = UnnamedFile) -> None:
        """Makes the first file. first_write: the node from which on a failure is too late.

        Raises: OffloadUnavailable.
        """
        self.values = spilled_values(program)
        self.file_bytes = max((value.place + value.size_bytes for value in self.values), default=0)
        self._folder = folder
        self._open = open_file
        self._first_write = first_write
        self._lock = threading.Lock()
        self._running: list[_Running] = []
        self._local = threading.local()
        self._files = [(os.getpid(), open_file(folder, self.file_bytes))] if self.values else []
        self.calls: dict[Node, Callable[..., Any]] = {}
        for which, value in enumerate(self.values):
            ends = [at for at in value.positions if program.nodes[at].target in (SPILLED, FETCHED)]
            for at in value.positions:
                end = next(end for end in ends if end >= at)
                self.calls[program.nodes[at]] = self._call(program.nodes[at], which, at, end)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around a run of the program, in its thread. Raises: OffloadUnavailable where there is no file any more."""
        if not self.values:
            yield
            return
        file = self._taken()
        running = self._local.running = _Running(file)
        with self._lock:
            self._running.append(running)
        try:
            yield
        finally:
            self._local.running = None
            running.stop()
            with self._lock:
                self._running.remove(running)
            if running.error is not None:
                file.close()
            else:
                with self._lock:
                    self._files.append((os.getpid(), file))
        if running.kept:
            names = ", ".join(self.values[which].name for which in running.kept)
            text = f"{names} could not be written to {self._folder}, and stayed in memory: the limit was not kept"
            warn(OffloadFailedLate(text))

    def under_way(self) -> int:
        """How many transfers are under way, in all runs."""
        with self._lock:
            return sum(running.under_way for running in self._running)

    def _taken(self) -> SpillFile:
        """A file that no other run has; none of another process's."""
        with self._lock:
            mine = [file for pid, file in self._files if pid == os.getpid()]
            self._files = [(os.getpid(), file) for file in mine[1:]]
        return mine[0] if mine else self._open(self._folder, self.file_bytes)

    def _call(self, node: Node, which: int, at: int, end: int) -> Callable[..., Any]:
        """What a node calls. which: of the values. at, end: its position, and that of the node that waits."""
        local, value = self._local, self.values[which]

        def spill(x: torch.Tensor) -> torch.Tensor:
            local.running.begin(_Transfer(end, x, value, is_write=True))
            return new_token(x)

        def spilled(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            error = local.running.wait(at)
            if error is not None:
                if at < self._first_write:
                    raise self._failed("write", "to", value) from error
                local.running.kept[which] = x
            return new_token(x)

        def fetch(token: torch.Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            if which in local.running.kept:
                kept: torch.Tensor = local.running.kept[which]
                return kept
            memory = memory_like(shape, stride, dtype, token.device)
            local.running.begin(_Transfer(end, memory, value, is_write=False))
            return memory

        def fetched(memory: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
            error = None if which in local.running.kept else local.running.wait(at)
            if error is not None:
                raise self._failed("read", "from", value) from error
            return new_token(token)

        calls: dict[Prim, Callable[..., Any]] = {SPILL: spill, SPILLED: spilled, FETCH: fetch, FETCHED: fetched}
        return calls[_prim(node)]

    def _failed(self, action: str, where: str, value: Spilled) -> OffloadFailed:
        error = self._local.running.error
        return OffloadFailed(
            action=action,
            where=where,
            value=value.name,
            size=f"{value.size_bytes:,}",
            folder=self._folder,
            error=f"{type(error).__name__}: {error}",
            origin=value.origin,
        )


def _prim(node: Node) -> Prim:
    assert isinstance(node.target, Prim), "only primitives move contents"
    return node.target


@dataclass(frozen=True, slots=True)
class TransferExecutor:
    """Runs the nodes that move contents. See `execute.protocol.Executor`."""

    calls: Mapping[Node, Callable[..., Any]]
    name: str = "file"

    def claim(self, node: Node) -> bool:
        """Whether the node is one of them."""
        return node in self.calls

    def call(self, names: Names, node: Node) -> str:
        """A call of what moves them."""
        return f"{names.constant(self.calls[node], _prim(node).name)}({names.arguments(node)})"


# --- one run ----------------------------------------------------------------------------------------------------------


class _Transfer:
    """Contents under way. end: the node that waits for them. tensor: held until then."""

    def __init__(self, end: int, tensor: torch.Tensor, value: Spilled, *, is_write: bool) -> None:
        self.end = end
        self.tensor: torch.Tensor | None = tensor
        self.error: Exception | None = None
        self.is_over = False
        self._is_write = is_write
        self._place = value.place
        self._size = value.size_bytes
        self._memory = memoryview((ctypes.c_ubyte * value.size_bytes).from_address(tensor.data_ptr())).cast("B")
        self._done = 0

    def go_on(self, file: SpillFile) -> bool:
        """Move one piece; whether it was the last one."""
        piece = self._memory[self._done : self._done + PIECE_BYTES]
        try:
            (file.write if self._is_write else file.read)(piece, self._place + self._done)
            self._done += len(piece)
        except Exception as error:  # of whatever kind: who waits raises it
            self.error = error
        return self.error is not None or self._done >= self._size


@dataclass(slots=True, eq=False)
class _Running:
    """The transfers of one run. kept: what stayed in memory, because it could not be written. error: the last one."""

    file: SpillFile
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    _under_way: list[tuple[int, _Transfer]] = field(default_factory=list)  # the one first that is waited for first
    _by_end: dict[int, _Transfer] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _is_stopped: bool = False

    @property
    def under_way(self) -> int:
        """How many transfers are."""
        with self._changed:
            return len(self._under_way)

    def begin(self, transfer: _Transfer) -> None:
        """Begin a transfer."""
        with self._changed:
            self._by_end[transfer.end] = transfer
            insort(self._under_way, (transfer.end, transfer))
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dovetail-transfers", daemon=True)
            self._thread.start()

    def wait(self, end: int) -> Exception | None:
        """Wait for a transfer; what went wrong, if anything did. From then on, its tensor is not held any more."""
        with self._changed:
            transfer = self._by_end.pop(end)
            while not transfer.is_over:
                self._changed.wait()
            transfer.tensor = None
        self.error = transfer.error or self.error
        return transfer.error

    def stop(self) -> None:
        """Give up what is not done."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._under_way.clear()
        self._by_end.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._under_way and not self._is_stopped:
                    self._changed.wait()
                if self._is_stopped:
                    return
                transfer = self._under_way[0][1]
            is_last = transfer.go_on(self.file)
            if is_last:
                with self._changed:
                    transfer.is_over = True
                    self._under_way.remove((transfer.end, transfer))  # others may stand before it by now
                    self._changed.notify_all()
