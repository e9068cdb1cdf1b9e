"""Whole training steps as functional programs with their copies at the end, and runs of such programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.capture.item_log import ItemHints
from dovetail.capture.step_recording import StepRecording
from dovetail.capture.step_tensors import StepNumber, StepTensor
from dovetail.ir.program import Program
from dovetail.ir.signature import Parameter, UserInput
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of
from dovetail.passes.common_subexpressions import merge_common_subexpressions
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.inplace import work_in_place
from dovetail.passes.no_ops import remove_no_ops
from dovetail.pipeline.differential import plain_function, same_bits
from dovetail.pipeline.step import with_copies


@dataclass(frozen=True)
class Step:
    """A recorded step. given: what its inputs hold."""

    program: Program
    given: list[Any]

    def run(self, program: Program) -> tuple[list[Any], list[Tensor]]:
        """The results of a program on copies of the inputs, and the inputs as it leaves them."""
        verify_program(program, lambda node: bool(writes_of(node)))
        given = [item.detach().clone() if isinstance(item, Tensor) else item for item in self.given]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            results = list(plain_function(program)(list(given)))
        return results, [item for item in given if isinstance(item, Tensor)]

    def assert_same(self, program: Program) -> Program:
        """Whether a program of the same meaning does the same, bit by bit, and in place; gives what works in place."""
        inplace, _ = work_in_place(program)
        verify_inplace(program, inplace, commit=True)
        expected = self.run(self.program)
        for other in (program, inplace):
            for wanted, found in zip(expected, self.run(other), strict=True):
                assert all(map(same_bits, wanted, found))
        return inplace


def recorded(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor], *batch: Tensor, **options: Any
) -> Step:
    """The second step of a training: forward, backward, clipping if `clip` is given, and the optimizer.

    options: clip, the largest norm; after, something that runs at the end.
    """

    def step() -> list[Any]:
        optimizer.zero_grad()
        result = loss(model, *batch)
        result.backward()
        if "clip" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        options.get("after", lambda: None)()
        return [result.detach()]

    step()
    held = [*model.parameters(), *model.buffers(), *options.get("state", ())]
    for state in optimizer.state.values():
        held += [item for item in state.values() if isinstance(item, Tensor)]
    tensors = [StepTensor(f"t{i}", f"t{i}", Parameter(f"t{i}"), tensor) for i, tensor in enumerate(dict.fromkeys(held))]
    tensors += [StepTensor(f"x{i}", f"x{i}", UserInput(i), tensor) for i, tensor in enumerate(batch)]
    group = optimizer.param_groups[0]
    rate = StepNumber("lr", group["lr"], lambda number: group.__setitem__("lr", number))
    recording = StepRecording(tensors, [rate], ItemHints())
    recording.run(step, contextlib.nullcontext())
    rate.put(rate.now)
    programs = recording.programs("step")
    program = programs.functional
    for simplify in (remove_dead_code, remove_no_ops, merge_common_subexpressions):
        program, _ = simplify(program)
    given: list[Any] = [tensors[i].tensor for i in programs.tensors]
    given += [*programs.constants, *(rate.now for _ in programs.numbers)]
    return Step(with_copies(program), given)
