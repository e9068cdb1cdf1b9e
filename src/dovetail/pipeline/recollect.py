"""Collect what a caller can see of a compiled graph once more, on fakes, and compare with what was recorded.

Removed duplicates, bases of inputs that share memory, views made again, writes carried out by the wrapper: each changes
where a tensor comes from and none may change what it looks like. Part of `verify`.
"""

from __future__ import annotations

import contextlib

import torch

from dovetail.capture.recording import Recording
from dovetail.capture.visible import visible_effects
from dovetail.errors import PassChangedMeaning
from dovetail.execute.graph import CompiledGraph
from dovetail.ops.facts import counts_writes_in_its_kernel, counts_writes_one_by_one
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
    for index in written_inputs(program, uncounted):  # fakes do not run the kernels that count
        torch.autograd.graph.increment_version(inputs[index])
    difference = recording.visible.difference(visible_effects(inputs, versions, outputs))
    if difference is not None:
        raise PassChangedMeaning(name="wrapper", program=graph.forward.program.name, detail=difference)
