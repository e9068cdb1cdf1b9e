"""`dovetail.analyse(f, *args)`: which inputs a call writes, and what memory results share, without compiling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.analysis.alias_pattern import AliasPattern
from dovetail.capture.recording import Recording
from dovetail.frontends.function import CompiledFunction
from dovetail.frontends.targets import as_callable
from dovetail.ir.graph_signature import GraphSignature
from dovetail.ir.plan_text import ResultOrigin, origin_of
from dovetail.ir.program import TensorMeta
from dovetail.ir.signature import InputRole, WriteKind
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import resolve_options
from dovetail.torch_compat.version import ensure_supported_torch


@dataclass(frozen=True, slots=True)
class InputReport:
    """One distinct tensor that the call reads or writes: an argument, parameter, buffer, or closed-over tensor.

    name, role: what it is. meta: shape, strides, dtype. is_leaf, requires_grad: as far as autograd knew before the
    call. written: how its data was written, None when it was not. metadata: operators that changed its shape or strides
    in place, in order. requires_grad_after: what `requires_grad` was set to, None when it was not. places: of how many
    arguments, parameters and buffers it is the object. shares_with: names of inputs with which it shares bytes, where
    one of them is written.
    """

    name: str
    role: InputRole
    meta: TensorMeta
    is_leaf: bool
    requires_grad: bool
    written: WriteKind | None
    metadata: tuple[str, ...]
    requires_grad_after: bool | None
    places: int
    shares_with: tuple[str, ...]

    def __str__(self) -> str:
        facts = [f"{self.name}: {self.meta}", "requires grad" if self.requires_grad else ""]
        facts += ["" if self.is_leaf else "not a leaf", f"written ({self.written.value})" if self.written else ""]
        facts += [f"reshaped by {', '.join(self.metadata)}" if self.metadata else ""]
        if self.requires_grad_after is not None:
            facts.append(f"requires_grad becomes {self.requires_grad_after}")
        facts.append(f"passed {self.places} times" if self.places > 1 else "")
        facts.append(f"shares written bytes with {', '.join(self.shares_with)}" if self.shares_with else "")
        return "; ".join(filter(None, facts))


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One object that the call returns.

    kind: "constant", "fresh", "input", "view of input", "view of intermediate", "same as output", or "wrapper". base:
    the input, output or intermediate that it is (a view of). views: the operators that lead from the base to it.
    requires_grad: as the caller sees it. meta: None for what is not a tensor.
    """

    kind: str
    base: str
    views: tuple[str, ...]
    requires_grad: bool
    shape: tuple[object, ...] | None

    def __str__(self) -> str:
        text = str(ResultOrigin(self.kind, self.base, self.views))
        text += f": [{', '.join(map(str, self.shape))}]" if self.shape is not None else ""
        return f"{text}; requires grad" if self.requires_grad else text


@dataclass(frozen=True, slots=True)
class AnalysisReport:
    """inputs, outputs: in the order of the program. signature: of the program that computes them.

    alias_pattern: how written inputs share memory in this call.
    """

    inputs: tuple[InputReport, ...]
    outputs: tuple[OutputReport, ...]
    alias_pattern: AliasPattern
    signature: GraphSignature

    def __str__(self) -> str:
        lines = ["inputs", *(f"  {report}" for report in self.inputs)]
        lines += ["outputs", *(f"  {number}: {report}" for number, report in enumerate(self.outputs))]
        return "\n".join(lines)


def analyse(target: Callable[..., Any] | torch.export.ExportedProgram, *args: Any, **kwargs: Any) -> AnalysisReport:
    """Analyse one call of a function or module.

    The function runs once on fake tensors, as if compiled with `dovetail.compile`; its arguments, parameters and
    buffers are unchanged.

    Args:
        target: a function of tensors, a module, or an exported program.
        args, kwargs: the arguments of the call.

    Returns:
        What happens to each input, and where each output comes from.

    Raises:
        DovetailError: the target cannot be recorded, or changes an input in a way that no program can repeat.
    """
    ensure_supported_torch()
    compiled = CompiledFunction(as_callable(target), resolve_options({}, PASS_NAMES))
    recording, places = compiled.record(*args, **kwargs)
    return AnalysisReport(
        _input_reports(recording, places),
        _output_reports(recording),
        recording.alias_pattern,
        GraphSignature.of(recording.programs("analysed", tuple(None for _ in recording.full_pattern())).functional),
    )


def _input_reports(recording: Recording, places: tuple[int, ...]) -> tuple[InputReport, ...]:
    changes, stand_ins = recording.changes, recording.stand_ins
    position = [i for i, s in enumerate(stand_ins) if s.rule is None]
    names = {k: stand_ins[i].declared.name for k, i in enumerate(position)}
    sharing = {
        member.argument: tuple(names[m.argument] for m in group.members if m is not member)
        for group in recording.alias_pattern.groups
        for member in group.members
    }
    reports = []
    for number, index in enumerate(position):
        stand_in = stand_ins[index]
        if not stand_in.declared.is_tensor:
            continue
        reports.append(
            InputReport(
                name=stand_in.declared.name,
                role=stand_in.role,
                meta=stand_in.value.tensor,
                is_leaf=stand_in.was_leaf,
                requires_grad=stand_in.requires_grad,
                written=changes.writes.get(index) or changes.touched.get(index),
                metadata=tuple(str(change.target) for change in changes.metadata if change.input == index),
                requires_grad_after=next((f.requires_grad for f in changes.flags if f.input == index), None),
                places=places[number] if number < len(places) else 1,
                shares_with=sharing.get(number, ()),
            )
        )
    return tuple(reports)


def _output_reports(recording: Recording) -> tuple[OutputReport, ...]:
    reports = []
    names, made = [s.declared.name for s in recording.stand_ins], list(map(str, recording.outputs.recorded))
    for rule, visible in zip(recording.outputs.plan.outputs, recording.visible.outputs, strict=True):
        origin = origin_of(rule, names, made)
        shape = None if visible is None else visible.shape
        requires_grad = visible is not None and visible.requires_grad
        reports.append(OutputReport(origin.kind, origin.base, origin.views, requires_grad, shape))
    return tuple(reports)
