"""What keeps a step from being captured though its code ran: memory that tensors share, generators that were set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.errors import OverlappingMutatedInputs, UnsupportedStep, WrittenArray
from dovetail.frontends.step.memory import Accesses, shared_memory
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.ir.calling import CallPlan
from dovetail.ir.program import Origin
from dovetail.reach.values import is_a
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.dtensors import is_dtensor, local_of, without_spread


def torch_generators(values: Iterable[Any]) -> list[tuple[torch.Generator, torch.Tensor]]:
    """The generators of torch among values, and where they are."""
    known = {id(x): x for x in values if isinstance(x, torch.Generator)}
    return [(x, x.get_state()) for x in known.values()]


def generator_is_set(origin: Origin | None = None) -> UnsupportedStep:
    """What to say of a step that sets a random generator, of whatever library."""
    return UnsupportedStep(
        what="sets a generator (`manual_seed`, `seed`, `set_state`)",
        why="this would happen once, while the step is captured, and never again",
        hint="set it outside the step",
        origin=origin,
    )


def refuse_set(generators: Sequence[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Raises: UnsupportedStep where a generator is somewhere else."""
    if any(not torch.equal(generator.get_state(), state) for generator, state in generators):
        raise generator_is_set()


def refuse_sharing(
    recording: StepRecording, tensors: Sequence[torch.Tensor], kept: Sequence[int], accesses: Accesses
) -> None:
    """Raises: OverlappingMutatedInputs where tensors share memory that the program writes.

    kept: for each tensor, its number in the recording; tensors that were met while recording follow.
    """
    met = range(len(kept), len(tensors))
    shared = shared_memory(tensors, replace(accesses, taken=(accesses.taken or frozenset()).union(met)))
    if shared is not None:
        labels = [*(recording.tensors[i].label for i in kept), *("a tensor found while recording" for _ in met)]
        written, other = (labels[index] for index in shared)
        reason = "a step's program does not track how such writes affect each other"
        raise OverlappingMutatedInputs(written=written, other=other, reason=reason)


def refuse_written_arrays(reachable: ReachableState, written: Iterable[torch.Tensor]) -> None:
    """Raises: WrittenArray where the step writes a tensor on the memory of an array that it reads."""
    slots = (slot for slot in reachable.slots if slot.container.is_read(slot.key))
    arrays = [value for slot in slots if is_a(value := slot.read(), np.ndarray)]
    for tensor in written if arrays else ():
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        held = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
        if any(np.may_share_memory(array, held) for array in arrays):
            raise WrittenArray(how="that it reads, through a tensor on its memory")


def bytes_before(tensors: Sequence[torch.Tensor], plan: CallPlan) -> int:
    """Bytes of the memory in which tensors lie, and of gradients that are dropped only once checks have passed.

    tensors: those that the plan numbers, and others.
    """
    held = [tensor for tensor in without_spread(tensors) if tensor.layout is torch.strided]
    owners = [tensors[g.input] for g in plan.gradients if g.is_cleared and not g.is_first]
    late = [local_of(owner) if is_dtensor(owner) else owner for owner in owners]
    storages = {storage_key(x): x.untyped_storage().nbytes() for x in held}
    return sum(storages.values()) + sum(x.numel() * x.element_size() for x in late)
