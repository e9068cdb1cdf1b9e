"""What a user may do with autograd around a compiled function: each story told in eager and compiled, compared bitwise.

A story takes `wrap`, which compiles, and returns what it saw: tensors, and plain values.
"""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import dovetail
from dovetail.errors import DoubleBackwardUnsupported, ForwardModeUnsupported
from tests.rotation import rotated

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Story = Callable[[Wrap], list[Any]]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def batch() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        if isinstance(theirs, Tensor):
            assert isinstance(mine, Tensor)
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()
        else:
            assert mine == theirs


@pytest.fixture(params=["below Dynamo", "through Dynamo"])
def wrap(request: pytest.FixtureRequest) -> Callable[..., Any]:
    torch.compiler.reset()
    if request.param == "below Dynamo":
        return dovetail.compile
    return lambda f, **options: torch.compile(f, backend="dovetail", options=options or None)


# --- stories ----------------------------------------------------------------------------------------------------------


def a_gradient_in_the_middle_after_an_ordinary_step(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    call = wrap(module)
    call(x).sum().backward()
    module.zero_grad()
    x.grad = None
    loss = call(x).square().sum()
    (inner,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    return [inner, x.grad, *gradients(module)]


def backward_twice(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    total = wrap(module)(x).sum()
    total.backward(retain_graph=True)
    total.backward()
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()
    return [x.grad, *gradients(module)]


def gradients_of_some_inputs(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    total = wrap(module)(x).sum()
    found = [*torch.autograd.grad(total, [module[0].weight], retain_graph=True)]
    return [*found, *torch.autograd.grad(total, [x, module[3].bias])]


def backward_into_some_inputs(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    wrap(module)(x).sum().backward(inputs=[x])
    return [x.grad, *gradients(module)]


def an_input_that_is_not_used(wrap: Wrap) -> list[Any]:
    call = wrap(lambda x, y: (x * 2, y * 3))
    x, y = batch(), batch()
    return list(torch.autograd.grad(call(x, y)[0].sum(), [x, y], allow_unused=True))


def gradients_for_some_outputs(wrap: Wrap) -> list[Any]:
    call, found = wrap(lambda x: (x * 2, x.exp(), x.sin())), []
    for used in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        x = batch()
        outputs = call(x)
        sum(outputs[k].sum() for k in used).backward()
        found.append(x.grad)
    return found


def one_output_after_the_other(wrap: Wrap) -> list[Any]:
    call = wrap(lambda x, w: ((x * w).exp().sum(), x.sin().sum(), w.cos().sum()))
    x, w = batch(), batch()
    found = []
    for output in call(x, w):
        output.backward()
        found += [x.grad.clone(), None if w.grad is None else w.grad.clone()]
    return found


def outputs_that_share_what_was_saved(wrap: Wrap) -> list[Any]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y.sum(), (y * 2).sum()

    x = batch()
    first, second = wrap(f)(x)
    first.backward()
    with pytest.raises(RuntimeError, match="second time"):
        second.backward()
    return [x.grad]


def an_input_that_changes_between_two_backwards(wrap: Wrap) -> list[Any]:
    x, scale = batch(), torch.ones(2, 4)
    first, second = wrap(lambda x, scale: (x.sin().sum(), (x * scale).sum()))(x, scale)
    first.backward()
    scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()
    return [x.grad]


def gradients_of_every_layout(wrap: Wrap) -> list[Any]:
    call, found = wrap(lambda x: (x * 2).t() @ x), []
    for arriving in (torch.ones(4, 4), torch.arange(16.0).reshape(4, 4).t(), torch.ones(1).expand(4, 4)):
        x = batch()
        call(x).backward(arriving)
        found.append(x.grad)
    return found


def accumulation_over_calls(wrap: Wrap) -> list[Any]:
    module = net()
    call = wrap(module)
    for step in range(3):
        call(torch.full((2, 4), float(step))).sum().backward()
    return gradients(module)


def two_calls_in_one_loss(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    call = wrap(module)
    (call(x) * call(x * 2)).sum().backward()
    return [x.grad, *gradients(module)]


def saved_tensor_hooks(wrap: Wrap) -> list[Any]:
    module = net()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        total = wrap(module)(batch()).square().sum()
    total.backward()
    return gradients(module)


def saved_on_the_cpu(wrap: Wrap) -> list[Any]:
    module = net()
    with torch.autograd.graph.save_on_cpu():
        total = wrap(module)(batch()).square().sum()
    total.backward()
    return gradients(module)


def full_backward_pre_hook(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    module[0].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,))
    wrap(module)(x).square().sum().backward()
    return [x.grad, *gradients(module)]


def full_backward_hook(wrap: Wrap) -> list[Any]:
    module, x = net(), batch()
    module[0].register_full_backward_hook(lambda module, grads, outputs: (grads[0] * 3,))
    wrap(module)(x).square().sum().backward()
    return [x.grad, *gradients(module)]


def hooks_on_parameters(wrap: Wrap) -> list[Any]:
    module, seen = net(), []
    module[0].weight.register_hook(lambda grad: grad * 3)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.sum().item()))
    wrap(module)(batch()).square().sum().backward()
    return [sorted(seen), *gradients(module)]


def hooks_on_outputs(wrap: Wrap) -> list[Any]:
    module, seen = net(), []
    result = wrap(module)(batch())
    result.retain_grad()
    result.register_hook(lambda grad: seen.append(grad.clone()))
    result.square().sum().backward()
    return [result.grad, *seen, *gradients(module)]


def anomaly_mode(wrap: Wrap) -> list[Any]:
    module = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            wrap(module)(batch()).square().sum().backward()
            x = torch.zeros(2, requires_grad=True)
            with pytest.raises(RuntimeError, match="returned nan values"):
                wrap(lambda x: (x * 0).sqrt().sum())(x).backward()
    return gradients(module)


def batched_gradients(wrap: Wrap) -> list[Any]:
    x = batch()
    return list(torch.autograd.grad(wrap(net())(x), x, torch.eye(6).reshape(6, 2, 3), is_grads_batched=True))


def jacobian(wrap: Wrap) -> list[Any]:
    return [torch.autograd.functional.jacobian(wrap(net()), batch().detach())]


def inside_vmap(wrap: Wrap) -> list[Any]:
    return [torch.func.vmap(wrap(net()))(torch.ones(3, 2, 4))]


def inside_grad(wrap: Wrap) -> list[Any]:
    call = wrap(net())
    return [torch.func.grad(lambda x: call(x).sum())(batch().detach())]


STORIES: list[Story] = [
    a_gradient_in_the_middle_after_an_ordinary_step,
    backward_twice,
    gradients_of_some_inputs,
    backward_into_some_inputs,
    an_input_that_is_not_used,
    gradients_for_some_outputs,
    one_output_after_the_other,
    outputs_that_share_what_was_saved,
    an_input_that_changes_between_two_backwards,
    gradients_of_every_layout,
    accumulation_over_calls,
    two_calls_in_one_loss,
    saved_tensor_hooks,
    saved_on_the_cpu,
    full_backward_pre_hook,
    full_backward_hook,
    hooks_on_parameters,
    hooks_on_outputs,
    anomaly_mode,
    batched_gradients,
    jacobian,
    inside_vmap,
    inside_grad,
]


@pytest.mark.parametrize("story", rotated(STORIES, 3), ids=lambda story: story.__name__)
def test_as_in_eager(wrap: Wrap, story: Story) -> None:
    assert_same(story(wrap), story(lambda function: function))


# --- second derivatives -----------------------------------------------------------------------------------------------


def gradient_penalty(wrap: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1)).double()
    call = wrap(module)
    found: list[Any] = []
    for _ in range(2):
        x = batch().detach().double().requires_grad_()
        scores = call(x * 2)
        (gradient,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        (scores.square().mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
        found += [x.grad, gradient.detach()]
    return [*found, *gradients(module), *module.buffers(), torch.get_rng_state()]


def inputs_that_lead_to_each_other(wrap: Callable[..., Any]) -> list[Any]:
    call = wrap(lambda x, y: (x * y).sin() * y, double_backward=True)
    x = batch().detach().double().requires_grad_()
    first, *_ = torch.autograd.grad(call(x, x.exp()).sum(), x, create_graph=True)
    second, *_ = torch.autograd.grad(first.sum(), x, create_graph=True)
    third, *_ = torch.autograd.grad(second.sum(), x)
    return [first, second, third]


def under_autocast(wrap: Callable[..., Any]) -> list[Any]:
    module, x = net(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = wrap(module)(x)
    (first,) = torch.autograd.grad(result.float().square().sum(), x, create_graph=True)
    return [first, *torch.autograd.grad(first.sum(), x)]


def what_the_function_closes_over(wrap: Callable[..., Any]) -> list[Any]:
    weight = torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True)
    x = batch().detach().double().requires_grad_()
    (first,) = torch.autograd.grad(wrap(lambda x: (x * weight).exp())(x).sum(), weight, create_graph=True)
    return [first, *torch.autograd.grad(first.sum(), [weight, x])]


ROUNDING_OF_BFLOAT16 = torch.finfo(torch.bfloat16).eps  # of the story under autocast, the only one in float32


@pytest.mark.parametrize(
    "story",
    [gradient_penalty, inputs_that_lead_to_each_other, under_autocast, what_the_function_closes_over],
    ids=lambda story: story.__name__,
)
def test_second_derivatives(wrap: Callable[..., Any], story: Callable[[Callable[..., Any]], list[Any]]) -> None:
    """To rounding: eager adds up the paths through first and second derivatives in another order."""
    expected = story(lambda function, **_: function)
    torch.compiler.reset()
    actual = story(lambda function, **_: wrap(function, double_backward=True))
    for mine, theirs in zip(actual, expected, strict=True):
        tolerance = (
            1e-12 if theirs.dtype == torch.float64 else ROUNDING_OF_BFLOAT16 if theirs.dtype == torch.float32 else 0
        )
        assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def test_second_derivatives_that_were_not_asked_for_name_the_way_out(wrap: Callable[..., Any]) -> None:
    x = batch()
    with pytest.raises(DoubleBackwardUnsupported, match="double_backward"):
        torch.autograd.grad(wrap(lambda x: x.exp())(x).sum(), x, create_graph=True)


def test_second_derivatives_of_outputs_that_share_memory_are_refused(wrap: Callable[..., Any]) -> None:
    x = batch()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y[0], y[:, 1]

    row, _ = wrap(f, double_backward=True)(x)
    with pytest.raises(DoubleBackwardUnsupported, match="share memory"):
        torch.autograd.grad(row.sum(), x, create_graph=True)


def test_second_derivatives_beside_a_written_input(wrap: Callable[..., Any]) -> None:
    def f(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.add_(x)
        return (x**3 * buffer).sum()

    found = []
    for call in (f, wrap(f, double_backward=True)):
        x, buffer = batch().detach().requires_grad_(), torch.ones(2, 4)
        (first,) = torch.autograd.grad(call(buffer, x), x, create_graph=True)
        found.append((first, torch.autograd.grad(first.sum(), x)[0], buffer))
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_second_derivatives_through_a_written_input_are_refused(wrap: Callable[..., Any], is_leaf: bool) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.set_grad_enabled(not is_leaf):
            x.mul_(2)
        return (x * w**3).sum()

    w, x = batch(), batch()
    total = wrap(f, double_backward=True)(x if is_leaf else x * 1, w)
    with pytest.raises(DoubleBackwardUnsupported, match="writes an input"):
        torch.autograd.grad(total, w, create_graph=True)


def test_second_derivatives_of_a_function_that_writes_what_it_closes_over_are_refused() -> None:
    count, x = torch.zeros(()), batch()

    def f(x: Tensor) -> Tensor:
        count.add_(1)
        return (x**3 * count).sum()

    total = dovetail.compile(f, double_backward=True)(x)
    with pytest.raises(DoubleBackwardUnsupported, match="closes over"):
        torch.autograd.grad(total, x, create_graph=True)
    assert count == 1


def test_second_derivatives_draw_the_numbers_of_the_users_generator_again() -> None:
    def f(x: Tensor, generator: torch.Generator) -> Tensor:
        return (x**3 * torch.rand(2, 4, generator=generator)).sum()

    found, x = [], batch()
    for call in (f, dovetail.compile(f, double_backward=True)):
        generator = torch.Generator().manual_seed(1)
        (first,) = torch.autograd.grad(call(x, generator), x, create_graph=True)
        found.append((first, generator.get_state()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_module_that_changed_before_the_second_derivative() -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), batch()
    total = dovetail.compile(net, double_backward=True)(x).sum()
    net.eval()
    with pytest.raises(DoubleBackwardUnsupported, match="has changed since"):
        torch.autograd.grad(total, x, create_graph=True)
    net.train()
    assert torch.autograd.grad(total, x, create_graph=True)[0].requires_grad


def test_a_weight_that_changed_before_the_second_derivative(wrap: Callable[..., Any]) -> None:
    linear, x = nn.Linear(4, 3), batch()
    total = wrap(linear, double_backward=True)(x).sum()
    with torch.no_grad():
        linear.bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total, x, create_graph=True)


# --- forward mode -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own decompositions
def test_forward_mode_through_a_direct_compilation_runs_in_eager_mode() -> None:
    module, tangents = net(), []
    for call in (dovetail.compile(module), module):
        with forward_ad.dual_level():
            result = call(forward_ad.make_dual(torch.ones(2, 4), torch.ones(2, 4)))
            tangents.append(forward_ad.unpack_dual(result).tangent.detach())
    assert torch.equal(*tangents)
    assert not math.isclose(tangents[0].abs().sum().item(), 0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own decompositions
def test_forward_mode_through_dynamos_graph_is_refused_by_name() -> None:
    torch.compiler.reset()
    call = torch.compile(net(), backend="dovetail")
    with forward_ad.dual_level(), pytest.raises(ForwardModeUnsupported, match="forward-mode"):
        call(forward_ad.make_dual(torch.ones(2, 4), torch.ones(2, 4)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own decompositions
def test_forward_mode_through_dynamos_graph_without_gradients_is_refused_by_name() -> None:
    torch.compiler.reset()
    call, x = torch.compile(lambda x, times: x.sin() * times, backend="dovetail"), torch.ones(3)
    with forward_ad.dual_level():
        with pytest.raises(ForwardModeUnsupported, match="forward-mode"):
            call(forward_ad.make_dual(x, x), 2.0)
        assert torch.equal(call(x, 2.0), x.sin() * 2)


# --- one output after the other ---------------------------------------------------------------------------------------


def _two_parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * x).sum(), w.exp().sum()


def test_a_backward_of_an_output_whose_graph_is_gone_is_refused_as_in_eager(wrap: Callable[..., Any]) -> None:
    for call in (_two_parts, wrap(_two_parts)):
        first, second = call(batch(), batch())
        first.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            first.backward()
        second.backward()


def test_what_another_backward_left_can_be_kept(wrap: Callable[..., Any]) -> None:
    for call in (_two_parts, wrap(_two_parts)):
        w = batch()
        first, second = call(batch(), w)
        first.backward()
        second.backward(retain_graph=True)
        second.backward()
        assert w.grad is not None
        assert torch.equal(w.grad, 2 * w.exp())
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            second.backward()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_backwards_of_one_result_read_what_forward_saved_of_equal_values(number: int) -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        a, b = x.clone(), x.clone()
        a[:2].mul_(weight[:2])
        b[:2].mul_(x[:2])
        return a, (b * b).mean(), x.exp() * weight + x.exp() * weight.sin()

    def gradients(called: Callable[..., tuple[Tensor, ...]]) -> list[Tensor | None]:
        x, weight = (torch.linspace(-1, end, 12).reshape(4, 3).requires_grad_() for end in (1, 2))
        called(x, weight)[number].sum().backward()
        return [x.grad, weight.grad]

    for found, wanted in zip(gradients(dovetail.compile(function)), gradients(function), strict=True):
        assert found is wanted if found is None or wanted is None else torch.equal(found, wanted)


def test_what_another_backward_left_dies_with_the_call() -> None:
    call = dovetail.compile(lambda x, w: (x.exp(), w.exp()))
    for _ in range(2):
        x, w = batch(), batch()
        gc.collect()
        gc.disable()
        try:
            first, second = call(x, w)
            first.sum().backward()
            alive = [weakref.ref(tensor) for tensor in (x, w, first, second)]
            del x, w, first, second
            assert [ref() for ref in alive] == [None] * 4
        finally:
            gc.enable()
