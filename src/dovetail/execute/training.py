"""Forward and backward of a compiled graph under one `torch.autograd.Function`.

Residuals go through `save_for_backward`, so version checks and the user's saved-tensor hooks apply, and are released
when backward starts unless the graph is kept. What a backward for some outputs does not read stays for one for others.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.errors import (
    BackwardNeedsUnsavedValue,
    DoubleBackwardUnsupported,
    ForwardModeUnsupported,
    UnsupportedTensor,
)
from dovetail.execute.backward import CompiledBackward
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.retained_gradients import Results, keep_gradient, kept_in_call, refuse_second_order
from dovetail.execute.second_order import HINT, Circumstances, Kept, differentiable_gradients
from dovetail.ir.calling import LIKE_OUTPUT, Arrival
from dovetail.torch_compat.autograd import (
    apply_without_transforms,
    backward_keeps_graph,
    drop_saved_tensors,
    transform_is_active,
    version_of,
    viewed_tensor,
)
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.subclasses import is_wrapper, put_together, take_apart


class TrainingGraph(CompiledGraph):
    """A compiled graph whose forward saves residuals, and whose backward autograd runs."""

    def _run(self, inputs: list[Any]) -> tuple[Any, ...]:
        for index in self.unreached:
            inputs[index] = inputs[index].detach()
        call = _Call(self)
        apply = _CompiledFunction.apply if transform_is_active() else _apply
        results: tuple[Any, ...] = apply(call, *inputs)
        inputs.clear()
        return call.merge(results)


@dataclass(slots=True)
class _Call:
    """One call: outputs that are not tensors travel here, around autograd."""

    graph: CompiledGraph
    others: dict[int, Any] = field(default_factory=dict)

    def merge(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.others:
            return tensors
        arriving = iter(tensors)
        outputs = [self.others[i] if i in self.others else next(arriving) for i in range(self.graph.outputs)]
        return (*outputs, *arriving)


@dataclass(slots=True)
class _CallState:
    """What backward needs of a call besides the tensors that autograd keeps.

    numbers, live: residuals that autograd does not keep, by place: numbers, and inputs that backward reads as they are
    then. strides: of the outputs. second: for second derivatives. passed: results that gradients of others come by.
    left: after a backward that let the graph go, the residuals that it did not read, by place, with their versions:
    like the nodes that eager has not visited, they serve a backward of other outputs. done: outputs whose backward let
    go of something.
    """

    graph: CompiledGraph
    inputs: int
    saved: int
    strides: list[tuple[int, ...] | None]
    numbers: dict[int, Any]
    live: dict[int, torch.Tensor]
    inputs_written_late: dict[int, torch.Tensor]
    second: Kept | None
    passed: Results = field(default_factory=dict)
    left: dict[int, tuple[Any, int]] | None = None
    done: set[int] = field(default_factory=set)

    def residuals(self, saved: Sequence[torch.Tensor]) -> Sequence[Any]:
        """All residuals, in order."""
        if not (self.numbers or self.live):
            return saved
        others, left = {**self.numbers, **self.live}, iter(saved)
        return [others[k] if k in others else next(left) for k in range(len(self.graph.residuals))]


class _CompiledFunction(torch.autograd.Function):
    """Forward and backward of a compiled graph, as autograd sees them."""

    boxed_grads_call = True  # gradients arrive in a list that may be emptied (torch 2.13); before, one by one

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Run the forward program; save its residuals."""
        graph = call.graph
        second = None
        if graph.source:
            second = Kept.of(graph.plan, inputs, Circumstances.now(draws=graph.draws, own=graph.generators))
        results = graph.run_forward(list(inputs))
        for i in graph.slots:
            results[i] = _as_result(results[i])
        outputs, saved = [results[i] for i in graph.slots], results[graph.outputs :]
        numbers: dict[int, Any] = {}
        live: dict[int, torch.Tensor] = {}
        late = {index: inputs[index] for index in graph.written_in_backward}
        if late or graph.has_numbers:
            own = {id(x) for x in late.values()}
            numbers = {k: r for k, r in enumerate(saved) if not isinstance(r, torch.Tensor)}
            live = {k: r for k, r in enumerate(saved) if id(r) in own}
            saved = [r for k, r in enumerate(saved) if k not in numbers and k not in live]
        strides = [o.stride() if isinstance(o, torch.Tensor) else None for o in results[: graph.outputs]]
        ctx.state = _CallState(graph, len(inputs), len(saved), strides, numbers, live, late, second)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*_as_data(saved, inputs), *(second.to_save(inputs) if second else ()))
        if graph.passed_slots:
            ctx.state.passed = {i: weakref.ref(results[i]) for i in graph.passed_slots}
        if graph.silent_slots:
            ctx.mark_non_differentiable(*[results[i] for i in graph.silent_slots])
        if graph.other_slots:
            call.others = {i: results[i] for i in graph.other_slots}
        return (*outputs, *graph.packed(results))

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
        state: _CallState = ctx.state
        graph = state.graph
        assert graph.backward_for is not None, "graphs without gradients do not come here"
        pattern, arrived = _arrivals(graph, state.strides, arriving)
        del arriving
        results: list[Any] = [None] * (1 + state.inputs)
        if not arrived:
            return tuple(results)
        kept = kept_in_call(state.passed, graph.passed, arrived) if state.passed else ()
        if torch.is_grad_enabled():
            refuse_second_order(kept)
            return (None, *_second_order(ctx, state, arrived))
        backward = graph.backward_for(tuple(pattern), tuple(kept))
        inputs = _backward_inputs(ctx, state, backward, arrived)
        del arrived
        made = backward.program(inputs)
        for index, gradient in zip(backward.gradients, made, strict=True):
            if index >= 0:
                results[1 + index] = gradient
        for index, layout, places in backward.wrapped:
            results[1 + index] = put_together(layout, [made[place] for place in places])
        for position, number in backward.of_results:
            keep_gradient(state.passed[number](), made[position], has_arrived=pattern[number] is not None)
        for position, role in backward.writes:
            (target,) = graph.tensors_of([role.constant]) if role.constant else [state.inputs_written_late[role.input]]
            target.copy_(made[position])
        return tuple(results)


_apply = apply_without_transforms(_CompiledFunction)


def _arrivals(
    graph: CompiledGraph, strides: Sequence[tuple[int, ...] | None], arriving: list[Any]
) -> tuple[list[Arrival], dict[int, torch.Tensor]]:
    """How gradients arrive, by output slot, and those that do. Empties the list."""
    pattern: list[Arrival] = [None] * graph.outputs
    arrived: dict[int, torch.Tensor] = {}
    for place, slot in enumerate(graph.slots):
        grad, arriving[place] = arriving[place], None
        if grad is not None and graph.plan.differentiable[slot]:
            pattern[slot], arrived[slot] = _arrival(grad, strides[slot], graph.any_layout)
    for place, pack in enumerate(graph.plan.packs, len(graph.slots)):
        grad, arriving[place] = arriving[place], None
        if grad is not None:
            for slot, part in zip(pack.slots, _parts(grad, len(pack.slots)), strict=True):
                pattern[slot], arrived[slot] = _arrival(part, strides[slot], graph.any_layout)
    return pattern, arrived


def _second_order(ctx: Any, state: _CallState, arrived: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of the inputs, computed so that they can be differentiated again."""
    graph = state.graph
    if graph.source is None or state.second is None:
        hint = (
            "compile with double_backward=True, which keeps the inputs of each call (torch.compile takes it as "
            f'options={{"double_backward": True}}); or {HINT}'
        )
        raise DoubleBackwardUnsupported(reason="the inputs needed to compute it were not kept", hint=hint)
    inputs = state.second.inputs(ctx.saved_tensors[state.saved :])
    constants = len(graph.constants)
    return differentiable_gradients(graph.source, graph.plan, inputs, state.second, constants, arrived)


def _arrival(grad: torch.Tensor, strides: tuple[int, ...] | None, any_layout: bool) -> tuple[Arrival, torch.Tensor]:
    """How a gradient arrives, and the gradient to hand on."""
    if grad.stride() == strides:
        return LIKE_OUTPUT, grad
    if any_layout or strides is None:
        return grad.stride(), grad
    if any(step == 0 and size > 1 for step, size in zip(strides, grad.shape, strict=True)):
        return LIKE_OUTPUT, grad  # of an expanded output: no gradient can lie like that
    return LIKE_OUTPUT, torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)


def _as_data(residuals: list[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The residuals, those that are views made by forward without what autograd knows of views.

    It would refuse to look at them once their base was written, or not name the write as eager does.
    """
    if not any(viewed_tensor(residual) is not residual for residual in residuals):
        return residuals
    own = {id(x) for x in inputs}
    return [r if viewed_tensor(r) is r or id(r) in own else r.detach() for r in residuals]


def _as_result(output: torch.Tensor) -> torch.Tensor:
    """The output, without what autograd knows of views: it lets nobody write a view that a function returns.

    Its version counter stays that of its memory, so that backward notices writes to what it saved there.
    """
    return output if viewed_tensor(output) is output else output.detach()


def _parts(grad: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The plain tensors of an arriving gradient, as many as its output has."""
    parts = take_apart(grad)[0] if is_wrapper(grad) else [grad]
    if len(parts) != count:
        raise UnsupportedTensor(
            name="gradient that arrives for a tensor subclass",
            kind=f"a {type(grad).__name__} of {len(parts)} tensors where {count} are expected",
            hint="use a gradient of the output's own class",
        )
    return parts


def _backward_inputs(
    ctx: Any, state: _CallState, backward: CompiledBackward, arrived: Mapping[int, torch.Tensor]
) -> list[Any]:
    """Residuals, constants and tangents, in the order of the backward program. Releases what ctx saved."""
    if backward.unsaved:
        raise BackwardNeedsUnsavedValue(pattern=list(arrived), names=", ".join(backward.unsaved))
    if state.left is None:
        residuals = state.residuals(ctx.saved_tensors[: state.saved])
        inputs = [residuals[place] for place in backward.residuals]
        if not backward_keeps_graph():
            state.left = _unread(state.graph, residuals, backward.residuals, arrived)
            drop_saved_tensors(ctx)
            state.done.update(arrived if backward.residuals else ())
    else:
        if backward.residuals and not state.done.isdisjoint(arrived):
            raise _freed()
        inputs = _left_over(state.left, backward.residuals)
        if not backward_keeps_graph():
            for place in backward.residuals:
                if not _stays(state.graph, place, state.left[place][0]):
                    del state.left[place]
            state.done.update(arrived if backward.residuals else ())
            if len(state.done) == sum(state.graph.plan.differentiable):
                state.left = {}
    if backward.constants:
        inputs += state.graph.tensors_of(backward.constants)
    inputs += [arrived[slot] for slot in backward.tangents]
    return inputs


def _unread(
    graph: CompiledGraph, residuals: Sequence[Any], read: Sequence[int], arrived: Collection[int]
) -> dict[int, tuple[Any, int]]:
    """What stays for a backward of the outputs that received nothing.

    That is what was not read, inputs that are leaves (somebody holds those anyway), and what values are computed again
    from: eager keeps these values apart, so each backward can be the first. In eager, each operator keeps what it needs
    of intermediate results by itself, and what two of them need stays until both have run; here it is gone with the
    first.
    """
    if len(arrived) == sum(graph.plan.differentiable):
        return {}
    gone = {k for k in read if not _stays(graph, k, residuals[k])}
    return {k: (_without_graph(r), _version(r)) for k, r in enumerate(residuals) if k not in gone}


def _stays(graph: CompiledGraph, place: int, residual: Any) -> bool:
    return place in graph.sources or _is_leaf_input(graph, place, residual)


def _is_leaf_input(graph: CompiledGraph, place: int, residual: Any) -> bool:
    return place in graph.input_residuals and isinstance(residual, torch.Tensor) and residual.is_leaf


def _without_graph(residual: Any) -> Any:
    """A residual that keeps no graph alive: that of an output would keep this call, which keeps the residual."""
    is_computed = isinstance(residual, torch.Tensor) and not residual.is_leaf
    return residual.detach() if is_computed else residual


def _freed() -> RuntimeError:
    return RuntimeError(
        "Trying to backward through the graph a second time: what this backward reads was freed by an earlier one. "
        "Specify retain_graph=True where backward (or autograd.grad) is called first."
    )


def _left_over(left: Mapping[int, tuple[Any, int]], wanted: Sequence[int]) -> list[Any]:
    """Residuals that an earlier backward left.

    Raises: RuntimeError, as eager does, where they are gone, or were written since.
    """
    found = [left.get(place) for place in wanted]
    if None in found:
        raise _freed()
    inputs = []
    for residual, version in filter(None, found):
        if _version(residual) != version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {list(residual.shape)} is at version {_version(residual)}; expected {version}."
            )
        inputs.append(residual)
    return inputs


def _version(residual: Any) -> int:
    return version_of(residual) if isinstance(residual, torch.Tensor) else 0
