"""Models recorded as programs whose weights are inputs, and runs of such programs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from dovetail.analysis.infer import MetaInference
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.installed import executor_by_name
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Program
from dovetail.ir.signature import Buffer, Parameter, UserInput
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of


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


def as_in_float64(model: nn.Module, *inputs: Any) -> Tensor:
    """The result of the model in double precision, of its parameters as they are."""
    with torch.no_grad():
        result = copy.deepcopy(model).double()(*[i.double() if i.is_floating_point() else i for i in inputs])
    assert isinstance(result, Tensor)
    return result


def assert_as_exact_as_eager(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Finite where eager is, laid out as eager's, and at most twice as far from the exact result, plus one rounding."""
    assert found.dtype == eager.dtype
    assert found.shape == eager.shape
    assert found.stride() == eager.stride()
    assert found.isfinite().logical_or(eager.isfinite().logical_not()).all()
    known = eager.isfinite() & exact.isfinite()
    if not known.any():
        return
    wanted = exact[known]
    error, eagers = ((result.double()[known] - wanted).abs().max() for result in (found, eager))
    rounding = (1 if eager.dtype.itemsize < 8 else 8) * torch.finfo(eager.dtype).eps * wanted.abs().max()
    assert error <= 2 * eagers + rounding, (error, eagers, rounding)
