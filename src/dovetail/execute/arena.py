"""Runs a program in an arena: one block for each call, in which results lie at offsets that were planned.

The places are tensors that are made once. They share a storage that has memory only while a call runs: the block is
taken when it begins and given back when it ends, so nothing is held between calls. A call that begins while another
runs, in another thread or inside it, has places of its own.

What a call returns never lies in the arena. After an error the frames of the generated code, which hold tensors that
do, are cleared. Whoever else holds one of them when a call ends (a mode that collects what operators are given, say)
keeps it with its memory: those places are not used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from dovetail.execute.compiled import AfterNode, CompiledProgram, is_generated
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Size
from dovetail.memory.in_arena import ArenaPlan
from dovetail.torch_compat.arenas import Layout, TensorArena


class ArenaProgram:
    """Callable `(inputs: list) -> tuple`, like the `CompiledProgram` of the program without an arena."""

    def __init__(
        self, program: Program, plan: ArenaPlan, executors: ExecutorList, after: Mapping[Node, AfterNode] | None = None
    ) -> None:
        """plan: of the program. after: by a node of it, what is called with its result."""
        self.program = program
        self.plan = plan
        placed = dict(zip(program.nodes, plan.program.nodes, strict=True))
        self.code = CompiledProgram(
            plan.program, executors, {placed[node]: call for node, call in (after or {}).items()}
        )
        self._idle: list[TensorArena] = []

    @property
    def executors(self) -> ExecutorList:
        """Who runs its nodes."""
        return self.code.executors

    @property
    def source(self) -> str:
        """The source that runs."""
        return self.code.source

    def failed_at(self, error: BaseException) -> int | None:
        """The number of the node that raised an error, None where that is not known."""
        return self.code.failed_at(error)

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run. inputs: one per program input, in order; emptied."""
        try:
            places = self._idle.pop()
        except IndexError:  # each of them runs
            places = self._new_places()
        places.take(self.plan.size_bytes)
        inputs += places.tensors
        try:
            return self.code(inputs)
        except BaseException as error:
            inputs.clear()
            _clear_frames(error.__traceback__)
            raise
        finally:
            if places.give_back():
                self._idle.append(places)

    def _new_places(self) -> TensorArena:
        return TensorArena(layouts_at(self.plan, [place.offset for place in self.plan.places]))


def layouts_at(plan: ArenaPlan, offsets: Sequence[int]) -> list[Layout]:
    """The places of a plan as they are at the given offsets."""
    metas = [place.value.tensor for place in plan.places]
    return [
        (offset, _ints(meta.shape), _ints(meta.stride), meta.dtype) for offset, meta in zip(offsets, metas, strict=True)
    ]


def _ints(sizes: Sequence[Size]) -> list[int]:
    assert all(isinstance(size, int) for size in sizes), "places have known sizes"
    return [size for size in sizes if isinstance(size, int)]


def _clear_frames(trace: TracebackType | None) -> None:
    """Let the generated code's frames go of what they hold."""
    while trace is not None:
        if is_generated(trace.tb_frame.f_code):
            trace.tb_frame.clear()
        trace = trace.tb_next
