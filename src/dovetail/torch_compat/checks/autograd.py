"""Checks of `torch_compat.autograd`."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat import autograd, profiler
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import DispatchMode


class _Probe(torch.autograd.Function):
    """The identity, whose backward writes down what the wrappers say while it runs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[object]) -> torch.Tensor:
        ctx.seen = seen
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        ctx.seen.append((autograd.backward_keeps_graph(), autograd.running_sequence_number()))
        return grads[0], None


class _Dropping(torch.autograd.Function):
    """The identity, whose backward releases what it saved and then looks for it."""

    forward = _Probe.forward

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        ctx.seen.append(len(ctx.saved_tensors))
        autograd.drop_saved_tensors(ctx)
        try:
            ctx.seen.append(len(ctx.saved_tensors))
        except RuntimeError:
            ctx.seen.append("released")
        return grads[0], None


def _leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def check_backward_keeps_graph() -> str | None:
    """A backward knows whether it was called with retain_graph=True."""
    seen: list[Any] = []
    y = _Probe.apply(_leaf(), seen).sum()
    y.backward(retain_graph=True)
    y.backward()
    return first_difference(("what two backward calls saw", [kept for kept, _ in seen], [True, False]))


def check_drop_saved_tensors() -> str | None:
    """Saved tensors can be released inside backward."""
    seen: list[object] = []
    _Dropping.apply(_leaf(), seen).sum().backward()
    return first_difference(("the saved tensors before and after", seen, [1, "released"]))


def check_without_saved_tensor_hooks() -> str | None:
    """Hooks are put aside, innermost first, and put back in their order."""
    calls: list[str] = []

    def hooks(name: str) -> torch.autograd.graph.saved_tensors_hooks:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            calls.append(name)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    x = _leaf()
    with hooks("outer"), hooks("inner"):
        with autograd.without_saved_tensor_hooks():
            x.exp()
        quiet = list(calls)
        x.exp()
    with hooks("outer"):
        with hooks("inner"), autograd.without_saved_tensor_hooks():
            pass
        x.exp()
    return first_difference(("while aside", quiet, []), ("afterwards", calls, ["inner", "outer"]))


def check_next_sequence_number() -> str | None:
    """Each new autograd node takes the next number."""
    x = _leaf()
    before = autograd.next_sequence_number()
    x.mul(2)
    return first_difference(("the count of one node", autograd.next_sequence_number() - before, 1))


def check_running_sequence_number() -> str | None:
    """A backward knows the number that its forward node got, and there is none outside a backward."""
    seen: list[Any] = []
    x = _leaf()
    number = autograd.next_sequence_number()
    _Probe.apply(x, seen).sum().backward()
    return first_difference(
        ("the number inside backward", seen[0][1], number),
        ("the number outside backward", autograd.running_sequence_number(), None),
    )


def check_running_node_name() -> str | None:
    """Code that runs in the backward of an operator hears the operator's name, and none outside."""
    seen: list[str | None] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(autograd.running_node_name())
            return func(*args, **(kwargs or {}))

    product = _leaf().sin()
    with Look():
        product.backward(torch.ones_like(product))
    return first_difference(
        ("the names", "SinBackward0" in seen, True), ("outside", autograd.running_node_name(), None)
    )


def check_asks_where_or_how_often() -> str | None:
    """A function mode is told of both questions."""
    told: list[object] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(autograd.asks_where_or_how_often(func))
            return func(*args, **(kwargs or {}))

    tensor = torch.zeros(2)
    with Mode():
        tensor.data_ptr(), tensor._version, tensor.dim()
    return first_difference(("what is asked for", told, [True, True, False]))


def check_apply_without_transforms() -> str | None:
    """Autograd sees a function that is applied so."""
    made = autograd.apply_without_transforms(_Probe)(torch.ones(2, requires_grad=True), [])
    return first_difference(("its node", type(made.grad_fn).__name__, "_ProbeBackward"))


def check_version_of() -> str | None:
    """A write raises the version of a tensor, and that of its views."""
    x = torch.zeros(2)
    view = x[:1]
    before = autograd.version_of(view)
    x.add_(1)
    with torch.inference_mode():
        uncounted = torch.zeros(2).add_(1)
    return first_difference(
        ("the rise of the version", autograd.version_of(view) - before, 1),
        ("the version of an inference tensor", autograd.version_of(uncounted), 0),
    )


def check_set_version() -> str | None:
    """The counter says what it was set to, for views as well."""
    x = torch.zeros(2)
    autograd.set_version(x, 7)
    return first_difference(("the version of a view", autograd.version_of(x[:1]), 7))


def check_version_counter_classes() -> str | None:
    """Tensors that count together get one number, others another; no counter shows that it was asked."""
    x, other = torch.zeros(2).add_(1), torch.zeros(2)
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    found = autograd.version_counter_classes([x, other, uncounted, x[:1], x.data])
    first, second, third, fourth, fifth = found
    return first_difference(
        ("numbers in common", (first == fourth, len({first, second, third, fifth})), (True, 4)),
        ("versions afterwards", (autograd.version_of(x), autograd.version_of(other)), (1, 0)),
    )


def check_viewed_tensor() -> str | None:
    """A view knows the tensor it is a view of."""
    x = torch.zeros(2)
    return first_difference(
        ("the base of a view", autograd.viewed_tensor(x[:1]) is x, True),
        ("the base of no view", autograd.viewed_tensor(x) is x, True),
    )


def check_transform_is_active() -> str | None:
    """Inside vmap and of a forward-mode level, and nowhere else."""
    found: list[bool] = [autograd.transform_is_active()]

    def note(x: torch.Tensor) -> torch.Tensor:
        found.append(autograd.transform_is_active())
        return x

    torch.func.vmap(note)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        note(torch.ones(2))
    found.append(autograd.transform_is_active())
    return first_difference(("before, in vmap, in forward mode, after", tuple(found), (False, True, True, False)))


def check_carry_tangents() -> str | None:
    """A tensor with a tangent is found among others, while it has one."""
    with warnings.catch_warnings(), torch.autograd.forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's, about decompositions of its own
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        found = [autograd.carry_tangents(values) for values in ([1, torch.ones(2)], [1, dual])]
    return first_difference(("without, with, after", (*found, autograd.carry_tangents([dual])), (False, True, False)))


def check_profiler_is_running() -> str | None:
    """A running profiler is seen."""
    before = autograd.profiler_is_running()
    during, _ = profiler.record_allocator_events(autograd.profiler_is_running)
    return first_difference(("before and with a profiler", (before, during), (False, True)))


def check_below_autograd() -> str | None:
    """Below autograd, results carry no gradient although the grad mode is on."""
    x = torch.ones(2, requires_grad=True)
    with torch.enable_grad(), autograd.below_autograd():
        result = torch.ops.aten.mul.Tensor(x, 2)
        mode = torch.is_grad_enabled()
    return first_difference(("requires_grad", result.requires_grad, False), ("the grad mode", mode, True))


def check_refused_backward() -> str | None:
    """Both ways to call backward are refused, and nothing is afterwards."""
    calls: list[str] = []

    def refuse() -> None:
        calls.append("refused")
        raise KeyError

    x = torch.ones(2, requires_grad=True)
    loss = x.sum()
    with autograd.refused_backward(refuse):
        for way in (loss.backward, lambda: torch.autograd.backward([loss])):
            with contextlib.suppress(KeyError):
                way()
    before = x.grad
    loss.backward()
    return first_difference(
        ("refusals", calls, ["refused", "refused"]),
        ("the gradient before and after", (before, x.grad is not None), (None, True)),
    )


def check_backward_within() -> str | None:
    """Hooks that backward calls find the context, whichever way it was called."""
    met: list[bool] = []
    adding: list[bool] = []
    inside: list[int] = []

    @contextlib.contextmanager
    def context(roots: Sequence[Any], adds: bool) -> Iterator[None]:
        inside.append(len(roots))
        adding.append(adds)
        yield
        inside.pop()

    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: met.append(bool(inside)))
    with torch.enable_grad():
        losses = [x.sum() for _ in range(4)]
        with autograd.backward_within(context):
            losses[0].backward()
            torch.autograd.grad(losses[1], x)
            losses[2].backward(inputs=[x])
        losses[3].backward()
    return first_difference(
        ("whether hooks were inside", met, [True, True, True, False]),
        ("whether all leaves get gradients", adding, [True, False, False]),
    )


def check_frees_arriving_gradients() -> str | None:
    """A gradient dies where the list that it came in is emptied, if it is said to."""
    alive: list[bool] = []

    class Empties(torch.autograd.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *arrived: Any) -> torch.Tensor:
            gradients = arrived[0] if isinstance(arrived[0], list) else list(arrived)
            watched = weakref.ref(gradients[0])
            del arrived
            gradients.clear()
            alive.append(watched() is not None)
            return torch.ones(2)

    x = torch.ones(2, requires_grad=True)
    (Empties.apply(x) * 2).sum().backward()
    return first_difference(
        ("whether gradients die", [not one for one in alive], [autograd.frees_arriving_gradients()])
    )


def check_call_node() -> str | None:
    """The name shows where a tensor is printed."""

    class Named(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            """Hand out a copy."""
            return x.clone()

    autograd.call_node(Named, "OtherBackward0")
    shown = str(Named.apply(torch.ones(1, requires_grad=True)))
    return first_difference(("the text", shown, "tensor([1.], grad_fn=<OtherBackward0>)"))


class _Watch(DispatchMode):
    """Notes for each sum whether the engine makes it after a node."""

    def __init__(self) -> None:
        super().__init__()
        self.node: object = None
        self.seen: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.seen.append(autograd.engine_adds_after(self.node))
        return func(*args, **(kwargs or {}))


def check_engine_adds_after() -> str | None:
    """Sums of what a function gave are the engine's; those that its backward makes itself are not."""
    watch = _Watch()

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            watch.node = ctx
            return grads[0] + grads[0]

    x = torch.ones(2, requires_grad=True)
    made = Doubled.apply(x) * x.sin()
    with watch:
        torch.autograd.grad(made.sum(), x)
    return first_difference(("whether sums are the engine's", watch.seen, [False, True]))


def check_refuse_inference_tensor() -> str | None:
    """Torch says the same where an inference tensor is written, and nobody says anything in inference mode."""
    with torch.inference_mode():
        made = torch.ones(1)
        autograd.refuse_inference_tensor()
    said = []
    for write in (lambda: made.add_(1), autograd.refuse_inference_tensor):
        try:
            write()
        except RuntimeError as error:
            said.append(str(error))
    return first_difference(("what is said", said[1:], said[:1]), ("how often", len(said), 2))


CHECKS = (
    check_refuse_inference_tensor,
    check_call_node,
    check_engine_adds_after,
    check_frees_arriving_gradients,
    check_backward_within,
    check_refused_backward,
    check_backward_keeps_graph,
    check_drop_saved_tensors,
    check_without_saved_tensor_hooks,
    check_next_sequence_number,
    check_running_node_name,
    check_running_sequence_number,
    check_apply_without_transforms,
    check_version_of,
    check_asks_where_or_how_often,
    check_set_version,
    check_version_counter_classes,
    check_viewed_tensor,
    check_transform_is_active,
    check_carry_tangents,
    check_below_autograd,
)
# Kineto wants to be started in the main thread, so this one runs apart from the others.
PROFILER_CHECKS = (check_profiler_is_running,)
