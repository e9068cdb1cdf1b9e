"""Models recorded as programs whose weights are inputs, and runs of such programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

import dovetail
from dovetail.analysis.infer import MetaInference
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.installed import executor_by_name
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Program
from dovetail.ir.signature import Buffer, Parameter, UserInput
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of
from tests.rounding import Rounded


@dataclass(frozen=True)
class Recorded:
    """A program and the tensors of the model that it takes. constants: the names of those inputs."""

    program: Program
    infer: MetaInference
    constants: tuple[str, ...]
    tensors: dict[str, Tensor]

    def run(self, program: Program, *inputs: Tensor) -> list[Any]:
        """The results of a program with the inputs of the recorded one, after a check of its rules."""
        verify_program(program, lambda node: bool(writes_of(node)))
        given = iter(inputs)
        args = [self.tensors[v.name] if v.name in self.tensors else next(given) for v in program.inputs]
        with torch.no_grad():
            results = CompiledProgram(program, ExecutorList((executor_by_name("aten"),)))(args)
        return [result for result in results if result is not None]


def record(model: nn.Module, *inputs: Any, dynamic: bool = False) -> Recorded:
    """The model as a functional program, as it runs without gradients; in the mode in which it is."""
    with torch.no_grad():
        recording, _ = dovetail.compile(model, dynamic=dynamic).record(*inputs)
        program = recording.programs("small", recording.full_pattern()).functional
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors: dict[str, Tensor] = {}
    for value, role in zip(program.inputs, program.signature.inputs, strict=True):
        if isinstance(role, Parameter | Buffer):
            tensors[value.name] = state[role.name]
        else:
            assert isinstance(role, UserInput)
    return Recorded(program, recording.infer, tuple(tensors), tensors)


def assert_rounded_as(found: Any, eager: Any, rounded: Rounded) -> None:
    """Finite where eager is, laid out as eager's; and each element within its bound, as eager's are."""
    for one, other in zip(*([*tree_iter(results)] for results in (found, eager)), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.isfinite().logical_or(other.isfinite().logical_not()).all()
    rounded.assert_holds(eager)
    rounded.assert_holds(found)
