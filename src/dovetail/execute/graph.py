"""A compiled graph: what the user calls.

Without gradients it is a program and its wrapper. With gradients it is an `execute.training.TrainingGraph`: forward and
backward are two programs under one `torch.autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from dovetail.errors import ForwardModeUnsupported
from dovetail.execute.backward import CompiledBackward
from dovetail.execute.donation import NOTHING_DONATED, Donated
from dovetail.execute.protocol import RunnableProgram
from dovetail.execute.second_order import Recomputation
from dovetail.execute.shared_bytes import announce_write
from dovetail.execute.wrapper import Wrapper
from dovetail.ir.calling import CallPlan, FromSlot, Pattern, Retained, WriteBack, is_carried_out
from dovetail.ir.program import Operand, Value
from dovetail.ir.signature import WriteKind
from dovetail.ops.facts import facts_of
from dovetail.ops.given_generators import given_generators
from dovetail.ops.prims import copy_into
from dovetail.ops.views import replay
from dovetail.torch_compat.autograd import carry_tangents, set_version, version_of
from dovetail.torch_compat.modes import set_switches
from dovetail.torch_compat.subclasses import put_together


@dataclass(eq=False)
class CompiledGraph:
    """Callable with the graph's inputs; returns a tuple of the user's outputs.

    constants: tensors passed to forward after the inputs, by name. outputs: how many forward outputs are not residuals.
    residuals: names of the forward outputs after those. sources: places of those from which backward computes others
    again, which the backward of any output may read. backward_for: gives the backward for a pattern, and the results
    whose gradients are kept, compiling it when it is new; None for inference. passed: for outputs, the other ones that
    their gradients come by. any_layout: gradients may be recorded in the layout in which they arrive;
    otherwise they are first laid out like their output. unreached: computed inputs that no gradient reaches, which
    autograd must not see: it would walk on to what they were computed from, and let go of what is saved there.
    residual_inputs: for residuals that are the new contents of an input, by their place: that input. counted_only:
    inputs that hold what the program should write: their version counters move. uncounted: inputs that the program
    writes, and whose version counters stay. source: the compiled function itself,
    where second derivatives are wanted. donated: inputs whose contents are lost. direct: forward, where the user gets
    what it returns for inputs and constants without gradients, and the wrapper has nothing to do. left_modes: modes of
    torch that each call leaves so, as `torch_compat.modes.switches` names them.
    """

    forward: RunnableProgram
    wrapper: Wrapper
    plan: CallPlan
    constants: dict[str, torch.Tensor]
    outputs: int
    residuals: tuple[str, ...] = ()
    sources: frozenset[int] = frozenset()
    backward_for: Callable[[Pattern, Retained], CompiledBackward] | None = None
    passed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    late_constants: Callable[[str], torch.Tensor] | None = None
    written_in_backward: tuple[int, ...] = ()
    residual_inputs: Mapping[int, int] = field(default_factory=dict)
    counted_only: tuple[int, ...] = ()
    uncounted: tuple[int, ...] = ()
    donated: Donated = NOTHING_DONATED
    any_layout: bool = True
    source: Recomputation | None = None
    unreached: tuple[int, ...] = ()
    constant_list: list[torch.Tensor] = field(default_factory=list)
    direct: RunnableProgram | None = None
    left_modes: Mapping[str, Any] = field(default_factory=dict)
    _copies: list[WriteBack] = field(default_factory=list)
    _copies_overlap: bool = False
    _written_slots: tuple[int, ...] = ()
    _is_followed: bool = False
    _only_computes: bool = False
    slots: tuple[int, ...] = ()
    other_slots: tuple[int, ...] = ()
    silent_slots: tuple[int, ...] = ()
    passed_slots: tuple[int, ...] = ()
    has_numbers: bool = False
    input_residuals: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.constant_list = list(self.constants.values())
        writes = [w for w in self.plan.writes if w.kind is not WriteKind.TRACKED]
        self._copies = [w for w in writes if not is_carried_out(self.forward.program, w)]
        self._written_slots = tuple(w.slot for w in writes)
        metas = [self.forward.program.inputs[w.input].tensor for w in self._copies]
        self._copies_overlap = any(meta.overlaps_itself() for meta in metas) or any(w.steps for w in self._copies)
        self._sort_outputs()
        self._is_followed = self.backward_for is not None or self.plan.is_followed_outside()
        self._only_computes = not (
            self.plan.writes
            or self.plan.packs
            or self.residual_inputs
            or self.counted_only
            or self.donated.given
            or self.donated.offered
            or self._is_followed
        )

        rules = tuple(map(FromSlot, range(len(self.forward.program.outputs))))
        hands_out = CallPlan(rules, (), self.plan.differentiable, extras_at=self.plan.extras_at)
        self.direct = self.forward if self._only_computes and self.plan == hands_out else None

    def _sort_outputs(self) -> None:
        """Outputs that autograd sees one by one, those it does not see, and those of the first without a gradient."""
        operands = self.forward.program.outputs
        elsewhere = set(self._written_slots) | {slot for pack in self.plan.packs for slot in pack.slots}
        seen = [i for i in range(self.outputs) if i not in elsewhere and _is_tensor(operands[i])]
        self.slots = tuple(seen)
        self.other_slots = tuple(i for i in range(self.outputs) if i not in seen)
        self.silent_slots = tuple(i for i in seen if not self.plan.differentiable[i])
        self.passed_slots = tuple(sorted({i for slots in self.passed.values() for i in slots}))
        inputs = {id(value) for value in self.forward.program.inputs}
        saved = operands[self.outputs :]
        self.input_residuals = frozenset(k for k, value in enumerate(saved) if id(value) in inputs)
        self.has_numbers = not all(map(_is_tensor, saved))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run with inputs in the order of the recorded function's arguments."""
        if self.left_modes:
            results = self._called(inputs)
            set_switches(self.left_modes)
            return results
        return self._called(inputs)

    def _called(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if carry_tangents(inputs):
            raise ForwardModeUnsupported()
        if self._only_computes and not torch.is_grad_enabled():
            return self.wrapper(self.forward, [*inputs, *self.constant_list])
        if self._is_followed and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            with torch.enable_grad():  # the program has a region with gradients in one without
                return self.wrapper(self._run, [*inputs, *self.constant_list])
        return self.wrapper(self._run, [*inputs, *self.constant_list])

    @cached_property
    def draws(self) -> bool:
        """Whether forward draws random numbers."""
        return any(facts_of(node.target).draws for node in self.forward.program.nodes)

    @cached_property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The random generators of the user's that forward draws from."""
        return tuple(given_generators(self.forward.program.nodes))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGraph:
        return self  # holds programs, which never change, and constants, which a copy of the user's module shares

    def _run(self, inputs: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            results = self.run_forward(inputs)
            return [*results, *self.packed(results)] if self.plan.packs else results

    def packed(self, outputs: Sequence[Any]) -> list[torch.Tensor]:
        """The wrappers that autograd sees instead of their parts."""
        return [put_together(pack.layout, [outputs[slot] for slot in pack.slots]) for pack in self.plan.packs]

    def run_forward(self, inputs: list[Any]) -> list[Any]:
        """Run the forward program and carry out the writes that autograd does not follow.

        Afterwards a residual that holds the new contents of an input is that input, and the contents are let go. The
        other writes, which the wrapper carries out, are announced.
        """
        if self._only_computes:
            return list(self.forward(inputs))
        followed = [inputs[w.input] for w in self.plan.writes if w.kind is WriteKind.TRACKED]
        written = [_target(w, inputs[w.input]) for w in self._copies]
        kept = {place: inputs[index] for place, index in self.residual_inputs.items()}
        counted = [inputs[index] for index in self.counted_only]
        numbered = [inputs[index] for index in self.uncounted if not inputs[index].is_inference()]
        versions = list(map(version_of, numbered))
        self.donated.count(inputs)
        self.donated.take(inputs)
        results = list(self.forward(inputs))
        for target, version in zip(numbered, versions, strict=True):
            set_version(target, version)
        for target in counted:
            torch.autograd.graph.increment_version(target)
        self._write_back(written, results)
        for place, target in kept.items():
            results[self.outputs + place] = target
        for target in followed:
            announce_write(target)
        return results

    def _write_back(self, targets: list[torch.Tensor], results: list[Any]) -> None:
        for write, target in zip(self._copies, targets, strict=True):
            if self._copies_overlap:
                copy_into(target, results[write.slot])
            else:
                target.copy_(results[write.slot])
        for slot in self._written_slots:
            results[slot] = None

    def tensors_of(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Constants by name, the ones that only backward reads included."""
        found = []
        for name in names:
            tensor = self.constants.get(name)
            if tensor is None:
                assert self.late_constants is not None, "a backward that reads constants can find them"
                tensor = self.late_constants(name)
            found.append(tensor)
        return found


def _is_tensor(operand: Operand) -> bool:
    return isinstance(operand, Value) and operand.is_tensor


def _target(write: WriteBack, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that new contents of an input are copied into."""
    target = tensor.data if write.kind is WriteKind.HIDDEN else tensor
    return replay(target, write.steps) if write.steps else target
