"""A compiled graph: what the user calls.

Without gradients it is a program and its wrapper. With gradients, forward and backward are two programs under one
`torch.autograd.Function`: residuals go through `save_for_backward`, so version checks and the user's saved-tensor hooks
apply, and are released when backward starts unless the graph is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from dovetail.errors import (
    BackwardNeedsUnsavedValue,
    DoubleBackwardUnsupported,
    ForwardModeUnsupported,
    UnsupportedTensor,
)
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.second_order import HINT, Kept, Source, differentiable_gradients
from dovetail.execute.shared_bytes import announce_write
from dovetail.execute.wrapper import Wrapper
from dovetail.ir.calling import LIKE_OUTPUT, Arrival, CallPlan, Pattern, WriteBack
from dovetail.ir.signature import Constant, Gradient, InputMutation, Residual, Signature, WriteKind
from dovetail.ops.facts import facts_of
from dovetail.ops.prims import copy_into
from dovetail.ops.views import replay
from dovetail.torch_compat.autograd import backward_keeps_graph, drop_saved_tensors, viewed_tensor
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.subclasses import WrapperLayout, is_wrapper, put_together, take_apart


@dataclass(frozen=True, slots=True)
class CompiledBackward:
    """A backward program for one pattern of arriving gradients.

    gradients: for each output the input whose gradient it is, or -1. wrapped: inputs whose gradient is a wrapper of
    several outputs.
    """

    program: CompiledProgram
    residuals: tuple[str, ...]
    constants: tuple[str, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    wrapped: tuple[tuple[int, WrapperLayout, tuple[int, ...]], ...]
    writes: tuple[tuple[int, InputMutation], ...]

    @staticmethod
    def of(compiled: CompiledProgram, tangents: Sequence[int]) -> CompiledBackward:
        """Read the roles off the program's signature. tangents: forward outputs whose gradient it takes."""
        signature = compiled.program.signature
        return CompiledBackward(
            program=compiled,
            residuals=tuple(r.name for r in signature.inputs if isinstance(r, Residual)),
            constants=tuple(r.name for r in signature.inputs if isinstance(r, Constant)),
            tangents=tuple(tangents),
            gradients=tuple(
                r.input if isinstance(r, Gradient) and r.wrapper is None else -1 for r in signature.outputs
            ),
            wrapped=_wrapped(signature),
            writes=tuple((i, r) for i, r in enumerate(signature.outputs) if isinstance(r, InputMutation)),
        )


def _wrapped(signature: Signature) -> tuple[tuple[int, WrapperLayout, tuple[int, ...]], ...]:
    """Gradients that are wrappers: of which input, how they are put together, and places of their parts."""
    found: dict[int, tuple[WrapperLayout, list[int]]] = {}
    for place, role in enumerate(signature.outputs):
        if isinstance(role, Gradient) and role.wrapper is not None:
            found.setdefault(role.input, (role.wrapper, []))[1].append(place)
    return tuple((index, layout, tuple(places)) for index, (layout, places) in found.items())


@dataclass(eq=False)
class CompiledGraph:
    """Callable with the graph's inputs; returns a tuple of the user's outputs.

    constants: tensors passed to forward after the inputs, by name. outputs: how many forward outputs are no residuals.
    residuals: names of the forward outputs after those. backward_for: gives the backward for a pattern, compiling it
    when it is new; None for inference. any_layout: gradients may be recorded in the layout in which they arrive;
    otherwise they are first laid out like their output. unreached: computed inputs that no gradient reaches, which
    autograd must not see: it would walk on to what they were computed from, and let go of what is saved there.
    residual_inputs: for residuals that are the new contents of an input, by their place: that input. source: the
    compiled function itself, where second derivatives are wanted.
    """

    forward: CompiledProgram
    wrapper: Wrapper
    plan: CallPlan
    constants: dict[str, torch.Tensor]
    outputs: int
    residuals: tuple[str, ...] = ()
    backward_for: Callable[[Pattern], CompiledBackward] | None = None
    late_constants: Callable[[str], torch.Tensor] | None = None
    written_in_backward: tuple[int, ...] = ()
    residual_inputs: Mapping[int, int] = field(default_factory=dict)
    any_layout: bool = True
    source: Source | None = None
    unreached: tuple[int, ...] = ()
    _constant_list: list[torch.Tensor] = field(default_factory=list)
    _copies: list[WriteBack] = field(default_factory=list)
    _copies_overlap: bool = False
    _is_followed: bool = False

    def __post_init__(self) -> None:
        self._constant_list = list(self.constants.values())
        self._copies = [w for w in self.plan.writes if w.kind is not WriteKind.TRACKED]
        metas = [self.forward.program.inputs[w.input].tensor for w in self._copies]
        self._copies_overlap = any(meta.overlaps_itself() for meta in metas) or any(w.steps for w in self._copies)
        self._is_followed = self.backward_for is not None or self.plan.is_followed_outside()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run with inputs in the order of the recorded function's arguments."""
        run = self._run_training if self.backward_for else self._run_inference
        if self._is_followed and not torch.is_grad_enabled():
            with torch.enable_grad():  # the program has a region with gradients in one without
                return self.wrapper(run, [*inputs, *self._constant_list])
        return self.wrapper(run, [*inputs, *self._constant_list])

    @cached_property
    def draws(self) -> bool:
        """Whether forward draws random numbers."""
        return any(facts_of(node.target).draws for node in self.forward.program.nodes)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGraph:
        return self  # holds programs, which never change, and constants, which a copy of the user's module shares

    def _run_inference(self, inputs: list[Any]) -> Sequence[Any]:
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
        followed = [inputs[w.input] for w in self.plan.writes if w.kind is WriteKind.TRACKED]
        written = [_target(w, inputs[w.input]) for w in self._copies]
        kept = {place: inputs[index] for place, index in self.residual_inputs.items()}
        results = list(self.forward(inputs))
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
            results[write.slot] = None

    def _run_training(self, inputs: list[Any]) -> tuple[Any, ...]:
        holder = _Call(self)
        for index in self.unreached:
            inputs[index] = inputs[index].detach()
        results: tuple[Any, ...] = _CompiledFunction.apply(holder, *inputs)
        inputs.clear()
        return holder.merge(results)

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


def _target(write: WriteBack, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that new contents of an input are copied into."""
    target = tensor.data if write.kind is WriteKind.HIDDEN else tensor
    return replay(target, write.steps) if write.steps else target


@dataclass(slots=True)
class _Call:
    """One call: outputs that are no tensors travel here, around autograd."""

    graph: CompiledGraph
    others: dict[int, Any] = field(default_factory=dict)

    def merge(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.others:
            return tensors
        arriving = iter(tensors)
        outputs = [self.others[i] if i in self.others else next(arriving) for i in range(self.graph.outputs)]
        return (*outputs, *arriving)


class _CompiledFunction(torch.autograd.Function):
    """Forward and backward of a compiled graph, as autograd sees them."""

    boxed_grads_call = True  # gradients arrive in a list that may be emptied (torch 2.13); before, one by one

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Run the forward program; save its residuals."""
        graph = call.graph
        kept = Kept.of(graph.plan, inputs, draws=graph.draws) if graph.source else None
        results = graph.run_forward(list(inputs))
        outputs, residuals = results[: graph.outputs], results[graph.outputs :]
        ctx.graph = graph
        ctx.input_count = len(inputs)
        ctx.set_materialize_grads(False)
        ctx.inputs_written_late = _late_writes(graph, inputs)
        live = {id(x) for x in ctx.inputs_written_late.values()}  # backward reads what they hold then, as eager does
        ctx.live = {name: r for name, r in zip(graph.residuals, residuals, strict=True) if id(r) in live}
        saved = [r for r in residuals if isinstance(r, torch.Tensor) and id(r) not in live]
        ctx.kept = kept
        ctx.save_for_backward(*_as_data(saved, inputs), *(kept.to_save(inputs) if kept else ()))
        ctx.saved_count = len(saved)
        ctx.numbers = [r for r in residuals if not isinstance(r, torch.Tensor)]
        packed = graph.packed(outputs)
        in_packs = {slot for pack in graph.plan.packs for slot in pack.slots}
        call.others = {i: o for i, o in enumerate(outputs) if not isinstance(o, torch.Tensor) or i in in_packs}
        differentiable = graph.plan.differentiable
        ctx.slots = [i for i in range(graph.outputs) if i not in call.others]
        ctx.mark_non_differentiable(*[outputs[i] for i in ctx.slots if not differentiable[i]])
        ctx.strides = [o.stride() if isinstance(o, torch.Tensor) else None for o in outputs]
        return (*[outputs[i] for i in ctx.slots], *packed)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse: there is no forward-mode derivative."""
        raise ForwardModeUnsupported()

    @staticmethod
    @not_traced
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Run the backward program for the gradients that arrived."""
        arriving: list[Any] = grads[0] if len(grads) == 1 and isinstance(grads[0], list) else list(grads)
        del grads
        graph: CompiledGraph = ctx.graph
        assert graph.backward_for is not None, "graphs without gradients do not come here"
        arrived: list[Any] = [None] * graph.outputs
        pattern: list[Arrival] = [None] * graph.outputs
        for slots in (*((slot,) for slot in ctx.slots), *(pack.slots for pack in graph.plan.packs)):
            grad = arriving.pop(0)
            if grad is not None and graph.plan.differentiable[slots[0]]:
                parts = _parts(grad, len(slots))
                while parts:
                    slot = slots[-len(parts)]
                    pattern[slot], arrived[slot] = _arrival(parts.pop(0), ctx.strides[slot], graph.any_layout)
            del grad
        results: list[Any] = [None] * (1 + ctx.input_count)
        if all(grad is None for grad in arrived):
            return tuple(results)
        if torch.is_grad_enabled():
            return (None, *_second_order(ctx, graph, arrived))
        backward = graph.backward_for(tuple(pattern))
        inputs = _backward_inputs(ctx, graph, backward, arrived)
        del arrived
        made = backward.program(inputs)
        for index, gradient in zip(backward.gradients, made, strict=True):
            if index >= 0:
                results[1 + index] = gradient
        for index, layout, places in backward.wrapped:
            results[1 + index] = put_together(layout, [made[place] for place in places])
        for position, role in backward.writes:
            (target,) = graph.tensors_of([role.constant]) if role.constant else [ctx.inputs_written_late[role.input]]
            target.copy_(made[position])
        return tuple(results)


def _second_order(ctx: Any, graph: CompiledGraph, arrived: Sequence[Any]) -> list[torch.Tensor | None]:
    """The gradients of the inputs, computed so that they can be differentiated again."""
    kept: Kept | None = ctx.kept
    if graph.source is None or kept is None:
        hint = f'compile with options={{"double_backward": True}}, which keeps the inputs of each call; or {HINT}'
        raise DoubleBackwardUnsupported(reason="nothing was kept to compute it with", hint=hint)
    inputs = kept.inputs(ctx.saved_tensors[ctx.saved_count :])
    arriving = {slot: grad for slot, grad in enumerate(arrived) if grad is not None}
    return differentiable_gradients(
        graph.source, graph.plan, inputs, kept.circumstances, len(graph.constants), arriving
    )


def _arrival(grad: torch.Tensor, strides: tuple[int, ...], any_layout: bool) -> tuple[Arrival, torch.Tensor]:
    """How a gradient arrives, and the gradient to hand on."""
    if grad.stride() == strides:
        return LIKE_OUTPUT, grad
    if any_layout:
        return grad.stride(), grad
    return LIKE_OUTPUT, torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)


def _as_data(residuals: list[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The residuals, those that are views made by forward without what autograd knows of views.

    It would refuse to look at them once their base was written, which has happened by now, and in good order.
    """
    own = {id(x) for x in inputs}
    return [r if viewed_tensor(r) is r or id(r) in own else r.detach() for r in residuals]


def _parts(grad: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The plain tensors of an arriving gradient, as many as its output has."""
    parts = take_apart(grad)[0] if is_wrapper(grad) else [grad]
    if len(parts) != count:
        raise UnsupportedTensor(
            name="gradient that arrives for a tensor subclass",
            kind=f"a {type(grad).__name__} of {len(parts)} tensors where {count} are expected",
            hint="let the gradient be of the output's own class",
        )
    return parts


def _late_writes(graph: CompiledGraph, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    return {index: inputs[index] for index in graph.written_in_backward}


def _backward_inputs(ctx: Any, graph: CompiledGraph, backward: CompiledBackward, arrived: Sequence[Any]) -> list[Any]:
    """Residuals, constants and tangents, in the order of the backward program. Releases what ctx saved."""
    names = [name for name in graph.residuals if name not in ctx.live]
    saved = {**ctx.live, **dict(zip(names, [*ctx.saved_tensors[: ctx.saved_count], *ctx.numbers], strict=True))}
    if not backward_keeps_graph():
        drop_saved_tensors(ctx)
    missing = [name for name in backward.residuals if name not in saved]
    if missing:
        pattern = [i for i, g in enumerate(arrived) if g is not None]
        raise BackwardNeedsUnsavedValue(pattern=pattern, names=", ".join(missing))
    inputs = [saved[name] for name in backward.residuals]
    inputs += graph.tensors_of(backward.constants)
    inputs += [arrived[i] for i in backward.tangents]
    return inputs
