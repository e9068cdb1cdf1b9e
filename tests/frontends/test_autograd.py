"""Gradients through compiled graphs: which arrive, which are saved, what raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailWarning, PythonSideEffect, UnsupportedOutput

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def _two_outputs(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = torch.sin(x @ w)
    return h.sum(), (h * torch.sigmoid(x)).exp()


@pytest.fixture(params=["below Dynamo", "through Dynamo"])
def compile_(request: pytest.FixtureRequest) -> Compile:
    torch.compiler.reset()
    if request.param == "below Dynamo":
        return dovetail.compile
    return lambda f: torch.compile(f, backend="dovetail")


@pytest.mark.parametrize("uses", [(1, 0), (0, 1), (1, 1)])
def test_each_pattern_of_arriving_gradients(compile_: Compile, uses: tuple[int, int]) -> None:
    compiled = compile_(_two_outputs)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    gradients = []
    for function in (_two_outputs, compiled):
        loss, features = function(x, w)
        total = uses[0] * loss if uses[0] else torch.zeros(())
        total = total + (features.t() * 2).sum() if uses[1] else total
        gradients.append(torch.autograd.grad(total, (x, w)))
    for expected, actual in zip(*gradients, strict=True):
        assert torch.equal(expected, actual)
        assert expected.stride() == actual.stride()


def test_a_gradient_that_eager_leaves_none_stays_none(compile_: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 3

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    first, _ = compile_(f)(x, y)
    first.sum().backward()
    assert y.grad is None
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_retain_graph_then_backward_then_error(compile_: Compile) -> None:
    compiled = compile_(lambda x: x.exp().sum())
    x = torch.randn(3, requires_grad=True)
    loss = compiled(x)
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    second = torch.autograd.grad(loss, x)[0]
    assert torch.equal(first, second)
    assert torch.equal(first, x.exp())
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, x)


def test_create_graph_is_refused_with_the_way_out(compile_: Compile) -> None:
    compiled = compile_(lambda x: x.exp().sum())
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(dovetail.DovetailError, match="create_graph=True"):
        torch.autograd.grad(compiled(x), x, create_graph=True)


def test_a_weight_changed_between_forward_and_backward_raises(compile_: Compile) -> None:
    linear = nn.Linear(3, 3)
    result = compile_(linear)(torch.zeros(2, 3, requires_grad=True))
    with torch.no_grad():
        linear.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified"):
        result.sum().backward()


def test_what_eager_cannot_differentiate_runs_forward_and_raises_in_backward(compile_: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.add_(1)
        return y * 3

    x = torch.zeros(3, requires_grad=True)
    assert torch.equal(dovetail.compile(f, verify=2)(x), torch.full((3,), 6.0))
    result = compile_(f)(x)
    assert torch.equal(result, torch.full((3,), 6.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_the_users_saved_tensor_hooks_see_the_residuals(compile_: Compile) -> None:
    compiled = compile_(lambda x: (x * 3).exp())
    x = torch.randn(4, requires_grad=True)
    packed: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor * 2

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2):
        result = compiled(x)
    assert packed == [torch.Size([4])]
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, (x * 3).exp() * 3)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * 5 + x


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does, by itself
def test_custom_functions_and_hooks_are_recorded_as_they_run(compile_: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = _Doubled.apply(x.sin())
        y.register_hook(lambda gradient: gradient * 7)
        return y.exp()

    x = torch.randn(3, requires_grad=True)
    expected = torch.autograd.grad(f(x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(compile_(f)(x).sum(), x)[0], expected)


class _Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, log: list[int]) -> Tensor:
        ctx.calls, ctx.stack, ctx.log, ctx.gone = 0, [[2.0], {"a": [3.0]}], log, 5.0
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ctx.calls += 1
        factor = ctx.calls * ctx.stack[1]["a"].pop() * ctx.stack.pop(0)[0] * ctx.gone
        del ctx.gone
        return grad * factor, None


@pytest.mark.parametrize("pattern", [(0,), (1,), (0, 1), (2,), (0, 2)])
def test_each_backward_finds_the_nodes_as_forward_left_them(pattern: tuple[int, ...]) -> None:
    """Backward is recorded for one set of results after the other, and changes what nodes hold."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = _Counting.apply(x, [])
        return y, y.sum(), x.exp()

    compiled, grads = dovetail.compile(function), []
    for call in (function, compiled, compiled):
        x = torch.arange(3.0).requires_grad_()
        results = call(x)
        torch.autograd.backward([results[n] for n in pattern], [torch.ones_like(results[n]) for n in pattern])
        grads.append(x.grad)
    assert torch.equal(grads[1], grads[0])
    assert torch.equal(grads[2], grads[0])


def test_residuals_are_released_by_backward() -> None:
    x = torch.randn(10, requires_grad=True)
    result = dovetail.compile(lambda x: x.exp().sin().exp())(x)
    node = result.grad_fn
    assert node is not None
    assert len(node.saved_tensors) == 2  # type: ignore[attr-defined]
    result.sum().backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = node.saved_tensors  # type: ignore[attr-defined]


def test_another_backward_is_recorded_once_per_layout_up_to_the_cap() -> None:
    compiled = dovetail.compile(lambda x: x.exp(), max_variants=2)
    x = torch.randn(4, 6, requires_grad=True)
    for gradient in (
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        torch.ones(1, 1).expand(4, 6),
        torch.randn(4, 12)[:, ::2],
    ):
        result = compiled(x)
        assert torch.equal(torch.autograd.grad(result, x, gradient)[0], torch.autograd.grad(x.exp(), x, gradient)[0])


MADE_LEAVES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda made: made * 3,
    "through a view": lambda made: made[:1].exp(),
}


@pytest.mark.parametrize("name", MADE_LEAVES)
def test_a_leaf_that_is_made_inside_beside_a_result_computed_from_it_is_refused(name: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        made = nn.Parameter(x.detach() * 2)
        return made, MADE_LEAVES[name](made)

    with pytest.raises(UnsupportedOutput, match="no gradient would reach the leaf"):
        dovetail.compile(program)(torch.ones(2))


@pytest.mark.parametrize("scope", ["outside", "within the call"])
def test_what_hooks_change_changes_in_each_backward(scope: str) -> None:
    outside = [0]

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        counted = outside if scope == "outside" else [0]

        def hook(gradient: Tensor) -> Tensor:
            counted[0] += 1
            return gradient * counted[0]

        y = x * 3
        y.register_hook(hook)
        return y * 2, x * 1

    def gradients(call: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Any]:
        outside[0], found = 0, list[Any]()
        for pattern in [(0,), (0, 1), (1,), (0,)]:
            x = torch.ones(2, requires_grad=True)
            results = call(x)
            torch.autograd.backward([results[n].sum() for n in pattern], retain_graph=True)
            results[pattern[0]].sum().backward()  # once more within the call
            found += [x.grad, outside[0]]
        return found

    compiled = dovetail.compile(function)
    with pytest.warns(DovetailWarning, match="run in eager mode, as the program changed a list in its backward"):
        found = gradients(compiled)
    assert str(found) == str(gradients(function))


def test_what_a_hook_changes_is_refused_where_a_limit_is_set() -> None:
    seen = list[int]()

    def function(x: Tensor) -> Tensor:
        y = x * 3
        y.register_hook(lambda gradient: seen.append(gradient.dim()))
        return y

    with pytest.raises(PythonSideEffect, match="changed a list in its backward"):
        dovetail.compile(function, memory_limit="1MiB")(torch.ones(2, requires_grad=True))
    assert seen == []
