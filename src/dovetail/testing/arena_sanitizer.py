"""Do programs that run in an arena rely on nothing but their own bytes of it?

    with ArenaSanitizer(seed=3):
        step(batch)

Each program that has an arena runs in another one: its buffers lie in a random valid order, in the planned one where
no seed is given, and behind each is a zone that nobody may write. All bytes are poison (0xFF, not a number in most
dtypes) before the run, and a buffer's again once it is no longer needed. So what reads a buffer too early or too late,
or one that has no room of its own, gives other results than eager mode. An `ArenaViolation` tells of what can be seen
within: two buffers that are needed at one time and share a byte, a byte of a zone that was written, and a result that
lies in the arena.

It works by taking the place of `ArenaProgram.__call__` while it is entered. The code that runs is the program's own.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any
from unittest import mock

import torch

from dovetail.execute.arena import ArenaProgram, layouts_at
from dovetail.memory.greedy import height, place_in_order
from dovetail.memory.in_arena import ArenaPlan
from dovetail.memory.items import parts_of
from dovetail.memory.problem import ALIGNMENT, Buffer, Placement, Problem
from dovetail.memory.solve import solve
from dovetail.testing.checked_run import observed_code
from dovetail.torch_compat.arenas import TensorArena

_POISON, _ZONE, _ZONE_BYTES = 0xFF, 0xAA, ALIGNMENT


class ArenaViolation(AssertionError):
    """A program uses bytes of its arena that are not its own at the time."""


class ArenaSanitizer:
    """See the module docstring. A context manager; once left, it can be entered again.

    programs, nodes: how many were checked so far.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.programs = self.nodes = 0
        self._seed = seed
        self._checked: dict[ArenaProgram, CheckedArena] = {}
        self._patches = ExitStack()

    def __enter__(self) -> ArenaSanitizer:
        def checked_run(program: ArenaProgram, inputs: list[Any]) -> tuple[Any, ...]:
            checked = self._checked.get(program)
            if checked is None:
                checked = self._checked[program] = CheckedArena(program, *self._arranged(program.plan))
            self.programs += 1
            self.nodes += len(program.program.nodes)
            return checked(inputs)

        self._patches.enter_context(mock.patch.object(ArenaProgram, "__call__", checked_run))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    def _arranged(self, plan: ArenaPlan) -> tuple[Problem, Placement]:
        wide = with_zones(plan.problem)
        return wide, solve(wide, decisions=0) if self._seed is None else random_placement(wide, self._seed)


def with_zones(problem: Problem) -> Problem:
    """Each buffer with a zone behind it."""
    return replace(problem, buffers=tuple(replace(b, size_bytes=b.size_bytes + _ZONE_BYTES) for b in problem.buffers))


def random_placement(problem: Problem, seed: int) -> Placement:
    """Each buffer in the lowest hole, in a random order."""
    rng = random.Random(seed)
    offsets, size = [0] * len(problem.buffers), 0
    for part in parts_of(problem):
        placed = place_in_order(part, rng.sample(range(len(part)), len(part)), 1 << 40)
        assert placed is not None, "nothing has a fixed offset"
        for number, offset in zip(part.numbers, placed, strict=True):
            offsets[number] = offset * part.unit
        size = max(size, height(part, placed) * part.unit)
    return Placement(tuple(offsets), size, problem.bound_bytes, f"random, seed {seed}")


@dataclass(frozen=True, slots=True)
class _Room:
    """A buffer and its bytes: [start, end), then a zone."""

    buffer: Buffer
    start: int
    end: int


class CheckedArena:
    """The checked version of a program. problem: its buffers with zones, in the order of the plan's places."""

    def __init__(self, program: ArenaProgram, problem: Problem, placement: Placement) -> None:
        self._program = program
        self._placement = placement
        self._rooms = [
            _Room(buffer, offset, offset + buffer.size_bytes - _ZONE_BYTES)
            for buffer, offset in zip(problem.buffers, placement.offsets, strict=True)
        ]
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._live: list[_Room] = []
        self._run = observed_code(program.code, self._observe)

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run. inputs: emptied. Raises: ArenaViolation."""
        size, offsets = self._placement.size_bytes, self._placement.offsets
        arena = TensorArena([(0, (size,), (1,), torch.uint8), *layouts_at(self._program.plan, offsets)])
        arena.take(size)
        self._live, self._bytes = [], arena.tensors[0].fill_(_POISON)
        inputs += arena.tensors[1:]
        results = self._run(inputs)
        for number, result in enumerate(results):
            is_tensor = isinstance(result, torch.Tensor) and result.layout is torch.strided
            if is_tensor and size and result.untyped_storage().data_ptr() == self._bytes.data_ptr():
                raise ArenaViolation(f"result {number} of {self._program.program.name} lies in the arena")
        return results

    def _observe(self, index: int, call: Any) -> Any:
        for room in self._rooms:
            if room.buffer.start == index:
                self._enter(room)
        result = call()
        for room in self._live:
            zone = self._bytes[room.end : room.end + _ZONE_BYTES]
            if not bool((zone == _ZONE).all()):
                node = self._program.plan.program.nodes[index]
                raise ArenaViolation(f"{node.target} wrote behind {room.buffer.name}, or a buffer lies there")
        for room in [room for room in self._live if room.buffer.end == index + 1]:
            self._bytes[room.start : room.end + _ZONE_BYTES] = _POISON
            self._live.remove(room)
        return result

    def _enter(self, room: _Room) -> None:
        for other in self._live:
            if room.start < other.end + _ZONE_BYTES and other.start < room.end + _ZONE_BYTES:
                raise ArenaViolation(f"{room.buffer.name} lies on {other.buffer.name}, which is needed yet")
        self._bytes[room.end : room.end + _ZONE_BYTES] = _ZONE
        self._live.append(room)
