"""Collect what a caller can see of a compiled graph once more, on fakes, and compare with what was recorded.

Removed duplicates, bases of inputs that share memory, views made again, writes carried out by the wrapper: each changes
where a tensor comes from and none may change what it looks like. Part of `verify`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dovetail.capture.recording import Recording
from dovetail.capture.visible import visible_effects
from dovetail.errors import PassChangedMeaning
from dovetail.execute.donation import NOTHING_DONATED
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.protocol import RunnableProgram
from dovetail.ir.program import Program
from dovetail.ops.facts import counts_writes_in_its_kernel, counts_writes_one_by_one
from dovetail.ops.prims import copy_into
from dovetail.pipeline.copies_back import written_inputs
from dovetail.torch_compat.autograd import version_of, without_saved_tensor_hooks
from dovetail.torch_compat.fake_layouts import RightLayouts
from dovetail.torch_compat.fakes import DATA_DEPENDENT_ERRORS, allow_real_inputs, kernels_for_symbolic_sizes

_UNABLE: tuple[type[Exception], ...] = (*DATA_DEPENDENT_ERRORS, NotImplementedError)


def verify_visible_effects(recording: Recording, graph: CompiledGraph) -> None:
    """Raise PassChangedMeaning unless the graph shows its caller what the recorded function did.

    A program that computes sizes from numbers, or draws a generator's state, cannot run on fakes and is passed over.
    """
    if graph.constants:
        return  # they are real, and running on them would write them
    copied = graph.donated.offered
    graph = _keeping_inputs(graph)
    inputs = recording.fresh_inputs()
    versions = [version_of(x) if isinstance(x, torch.Tensor) else 0 for x in inputs]
    state = torch.get_rng_state()
    try:
        kernels = kernels_for_symbolic_sizes() if recording.is_symbolic else contextlib.nullcontext()
        with without_saved_tensor_hooks(), recording.mode, allow_real_inputs(recording.mode), kernels, RightLayouts():
            outputs = graph(*inputs)
    except _UNABLE:
        return
    finally:
        with contextlib.suppress(RuntimeError):
            torch.set_rng_state(state)
    program = graph.forward.program
    uncounted = [
        n for n in program.nodes if counts_writes_one_by_one(n.target) or counts_writes_in_its_kernel(n.target)
    ]
    for index in written_inputs(program, uncounted).difference(copied):  # fakes do not run the kernels that count
        torch.autograd.graph.increment_version(inputs[index])
    difference = recording.visible.difference(visible_effects(inputs, versions, outputs))
    if difference is not None:
        raise PassChangedMeaning(name="wrapper", program=graph.forward.program.name, detail=difference)


def _keeping_inputs(graph: CompiledGraph) -> CompiledGraph:
    """The graph as if nothing were donated: it works in copies. Eager does not give its inputs away."""
    if not graph.donated.given:
        return graph
    return replace(graph, forward=_OnCopies(graph.forward, graph.donated.offered), donated=NOTHING_DONATED)


class _OnCopies:
    def __init__(self, code: RunnableProgram, copied: Sequence[int]) -> None:
        self._code = code
        self._copied = copied

    @property
    def program(self) -> Program:
        return self._code.program

    @property
    def source(self) -> str:
        return self._code.source

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        for index in self._copied:
            given = inputs[index]
            made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
            inputs[index] = copy_into(made, given)
        return self._code(inputs)
