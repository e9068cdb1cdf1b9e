"""Gradients that the user wrote: autograd functions, hooks, checkpoints, and operators of libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from tests.doors import Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf
from tests.torch_release import BEFORE_2_13

pytestmark = pytest.mark.usefixtures("alone")


# --- functions ----------------------------------------------------------------------------------------------------


class _Product(Function):
    """Saves inputs and an output; asks which gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w, y = ctx.saved_tensors
        return (
            gradient * w if ctx.needs_input_grad[0] else None,
            gradient * x + y if ctx.needs_input_grad[1] else None,
        )


def case_saved_inputs_and_outputs() -> Case:
    return Case(lambda x, w: _Product.apply(x, w) * 2, (leaf(3), leaf(3)))


def case_a_gradient_that_is_not_wanted() -> Case:
    return Case(lambda x, w: _Product.apply(x, w) * 2, (leaf(3), torch.randn(3)))


class _Several(Function):
    """In the newer style; one result is not differentiable, and gradients that do not arrive stay None."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
        return x.exp(), x > 0, x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0])
        ctx.factor = inputs[1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, _: None, third: Tensor | None) -> tuple[Tensor | None, None]:
        (exponential,) = ctx.saved_tensors
        found = None if first is None else first * exponential
        if third is not None:
            found = third * ctx.factor if found is None else found + third * ctx.factor
        return found, None


def case_several_results() -> Case:
    return Case(lambda x: _Several.apply(x, 3.0), (leaf(3),))


def case_one_result_of_several() -> Case:
    return Case(lambda x: (_Several.apply(x, 3.0)[0], _Several.apply(x.sin(), 2.0)[2] * 2), (leaf(3),))


class _Doubled(Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def case_a_written_argument() -> Case:
    return Case(lambda x: _Doubled.apply(x.sin()) * 3, (leaf(3),))


def case_a_written_view() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        _Doubled.apply(y[1:])
        return y

    return Case(f, (leaf(3),))


class _Reversed(Function):
    """Hands its argument back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def case_a_result_that_is_the_argument() -> Case:
    return Case(lambda x: (_Reversed.apply(x.sin()).cos(), _Reversed.apply(x * 2)), (leaf(3),))


class _Rounded(Function):
    """Draws in forward and in backward, and keeps something on the context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, options: dict[str, float]) -> Tensor:
        ctx.kept = x.detach() * options["scale"]
        return (x + torch.rand_like(x)).round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.kept * torch.rand_like(gradient), None


def case_draws_in_both_directions() -> Case:
    return Case(lambda x: _Rounded.apply(x * 3, {"scale": 2.0}).sin(), (leaf(3),))


class _Inner(Function):
    """Runs a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin().exp()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(ctx.y, ctx.x, gradient)
        return found


def case_a_backward_of_its_own() -> Case:
    return Case(lambda x: _Inner.apply(x) * 2, (leaf(3),))


# --- hooks --------------------------------------------------------------------------------------------------------


def case_tensor_hooks() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2)
        y.register_hook(lambda gradient: gradient.clamp(-1, 1))
        part = y[1:]
        part.register_hook(lambda gradient: gradient * 3)
        y.mul_(2)
        return y.sum() + (part * x[1:]).sum()

    return Case(f, (leaf(3),))


def case_a_hook_on_a_node() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
        return y * x

    return Case(f, (leaf(3),))


def case_a_hook_that_is_taken_away() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 100).remove()
        return y * 2

    return Case(f, (leaf(3),))


def case_hooks_on_arguments() -> Case:
    x = leaf(3)
    x.register_hook(lambda gradient: gradient * 2)
    return Case(lambda x: x * 3, (x,))


# --- checkpoints --------------------------------------------------------------------------------------------------


def _checkpointed(use_reentrant: bool) -> Case:
    net = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 3))

    def f(x: Tensor) -> Tensor:
        return checkpoint(net, x.sin(), use_reentrant=use_reentrant).sum()

    return Case(f, (leaf(2, 3),), module=net)


def case_checkpoint() -> Case:
    return _checkpointed(use_reentrant=False)


def case_reentrant_checkpoint() -> Case:
    return _checkpointed(use_reentrant=True)


def case_checkpoint_under_autocast() -> Case:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(net, x.sin(), use_reentrant=False)

    return Case(f, (leaf(2, 3),), module=net)


# --- operators of libraries ---------------------------------------------------------------------------------------


@torch.library.custom_op("dovetail_semantics::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    """With a gradient."""
    return x.sin()


sine.register_fake(torch.empty_like)
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("dovetail_semantics::scaled", mutates_args=())
def scaled(tensors: list[Tensor], factor: float) -> list[Tensor]:
    """On a list, with a gradient."""
    return [tensor * factor for tensor in tensors]


scaled.register_fake(lambda tensors, factor: [torch.empty_like(tensor) for tensor in tensors])
scaled.register_autograd(
    lambda ctx, gradients: ([gradient * ctx.factor for gradient in gradients], None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("dovetail_semantics::accumulate", mutates_args={"total", "others"})
def accumulate(total: Tensor, x: Tensor, others: list[Tensor], maybe: Tensor | None = None) -> Tensor:
    """Writes one tensor and each of a list."""
    total.add_(x)
    for other in others:
        other.mul_(2)
    return total * (2 if maybe is None else maybe)


accumulate.register_fake(lambda total, x, others, maybe=None: torch.empty_like(total))


@torch.library.custom_op("dovetail_semantics::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    """Draws."""
    return torch.rand_like(x)


noise.register_fake(torch.empty_like)

LIBRARY = torch.library.Library("dovetail_semantics_lib", "DEF")
LIBRARY.define("double_(Tensor(a!) x, Tensor y) -> Tensor")
LIBRARY.impl("double_", lambda x, y: (x.mul_(2), x + y)[1], "CPU")
LIBRARY.impl("double_", lambda x, y: torch.empty_like(y), "Meta")
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: x.sin() * 2, "CompositeImplicitAutograd")


def case_an_operator_with_a_gradient() -> Case:
    return Case(lambda x: sine(x * 2) + sine(x), (leaf(3),))


def case_an_operator_on_a_list() -> Case:
    return Case(lambda x, y: scaled([x, y.sin()], 2.5), (leaf(3), leaf(2)))


def case_an_operator_that_writes() -> Case:
    def f(total: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        before = total * 2
        rows = torch.ones(4)
        made = accumulate(total, x, [before, rows[1:]])
        again = accumulate(rows[1:], made, [], x)
        return before, made, again, rows, total + x

    return Case(f, (torch.ones(3), torch.randn(3)))


def case_an_operator_that_draws() -> Case:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        made = x.detach()
        return noise(made) - noise(made), torch.rand(3), noise(made) * x

    return Case(f, (leaf(3),))


def case_operators_of_a_library() -> Case:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = torch.ops.dovetail_semantics_lib.double_(y, x.detach())
        return made, y * 1, torch.ops.dovetail_semantics_lib.composed(x)

    return Case(f, (leaf(3), torch.randn(3)))


# Before torch 2.13 Dynamo itself makes other gradients of the first than eager, whatever the backend, and refuses the
# second.
_NOT_BY_DYNAMO = ("a_written_view", "tensor_hooks") if BEFORE_2_13 else ()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does, by itself
@cases_of(
    globals(),
    in_pieces=("reentrant_checkpoint", "a_backward_of_its_own", "a_hook_on_a_node"),
    only_direct=("a_hook_that_is_taken_away", *_NOT_BY_DYNAMO),
)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)
