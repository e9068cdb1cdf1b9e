"""Steps of optimizers, running statistics, counters."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import SYMBOLIC, Pattern


def _four() -> tuple[Tensor, ...]:
    return torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 4), torch.rand(8, 4)


def _lists() -> tuple[Tensor, ...]:
    return tuple(torch.randn(6, 2) for _ in range(4))


def add_to_an_input(x: Tensor) -> None:
    x.add_(1)


def momentum(parameter: Tensor, gradient: Tensor, average: Tensor) -> None:
    average.mul_(0.9).add_(gradient, alpha=0.1)
    parameter.sub_(average, alpha=0.01)


def adam(parameter: Tensor, gradient: Tensor, average: Tensor, square: Tensor) -> None:
    average.mul_(0.9).add_(gradient, alpha=0.1)
    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    parameter.addcdiv_(average, square.sqrt().add_(1e-8), value=-0.01)


def adam_with_lerp(parameter: Tensor, gradient: Tensor, average: Tensor, square: Tensor, step: Tensor) -> None:
    step += 1
    average.lerp_(gradient, 0.1)
    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    size = 0.01 / (1 - 0.9**step)
    parameter.mul_(1 - 1e-4).addcdiv_(average, (square.sqrt() / (1 - 0.99**step).sqrt()).add_(1e-8) / -size)


def adam_of_lists(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    parameters, gradients = [p, q], [g, h]
    averages = torch._foreach_mul(gradients, 0.1)
    squares = torch._foreach_mul(gradients, gradients)
    torch._foreach_sqrt_(squares)
    torch._foreach_add_(squares, 1e-8)
    torch._foreach_addcdiv_(parameters, averages, squares, -0.01)


def fused_adam(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    averages, squares, largest = [p * 0, q * 0], [p * 0, q * 0], [p * 0, q * 0]
    steps = [p.sum() * 0 + 1, q.sum() * 0 + 1]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adamw_([p, q], [g, h], averages, squares, largest, steps, amsgrad=True, maximize=False, **options)


def add_to_lists(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    torch._foreach_add_([p, q], [g, h], alpha=-0.1)


def copy_lists(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    torch._foreach_copy_([p, q], [g * 2, h * 2])


def clip_and_step(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    norms = torch._foreach_norm([g, h])
    scale = (1.0 / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([g, h], scale)
    torch._foreach_add_([p, q], [g, h], alpha=-0.1)


def views_of_a_flat_parameter(flat: Tensor, gradient: Tensor) -> None:
    first, second = flat[:12].view(3, 4), flat[12:].view(3, 4)
    torch._foreach_add_([first, second], [gradient, gradient * 2])


def zero_the_gradients(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    torch._foreach_add_([p, q], [g, h], alpha=-0.1)
    torch._foreach_zero_([g, h])


def moving_average(average: Tensor, parameter: Tensor) -> None:
    average.lerp_(parameter, 0.1)


def running_statistics(x: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    return torch.ops.aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5)[0]


def running_statistics_by_hand(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    mean.copy_(0.9 * mean + 0.1 * x.mean(0))
    variance.mul_(0.9).add_(x.var(0), alpha=0.1)
    return (x - mean) / variance.add(1e-5).sqrt()


def divide_into(p: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    p.addcdiv_(a, c + 1)


def accumulate_a_gradient(weight: Tensor, gradient: Tensor, x: Tensor, dy: Tensor) -> None:
    gradient.addmm_(dy.t(), x)


def scale_by_a_mask(gradient: Tensor, bad: Tensor) -> None:
    gradient.masked_fill_(bad, 0.0)


def swap_with_a_shadow(parameter: Tensor, shadow: Tensor) -> None:
    kept = parameter.clone()
    parameter.copy_(shadow)
    shadow.copy_(kept)


PATTERNS = (
    Pattern("add_ to an input", add_to_an_input, lambda: (torch.randn(8, 4),), SYMBOLIC),
    Pattern("momentum", momentum, lambda: _four()[:3], SYMBOLIC),
    Pattern("Adam", adam, _four, SYMBOLIC, report="pytorch#91310"),
    Pattern("Adam: lerp_ and a step", adam_with_lerp, lambda: (*_four(), torch.tensor(3.0))),
    Pattern("Adam: foreach", adam_of_lists, _lists, report="pytorch#119191"),
    Pattern("Adam: fused", fused_adam, _lists),
    Pattern("foreach: add_", add_to_lists, _lists, report="pytorch#177772"),
    Pattern(
        "foreach: copy_",
        copy_lists,
        _lists,
        more={"mutations": 2, "mutations_and_views": 2},
        weakness="a list is copied as a whole, after what it holds was made",
    ),
    Pattern("foreach: clip and step", clip_and_step, _lists),
    Pattern(
        "foreach: views of a flat parameter",
        views_of_a_flat_parameter,
        lambda: (torch.randn(24), torch.randn(3, 4)),
    ),
    Pattern("foreach: zero_", zero_the_gradients, _lists),
    Pattern("moving average", moving_average, lambda: _four()[:2], SYMBOLIC),
    Pattern(
        "batch norm",
        running_statistics,
        lambda: (torch.randn(6, 4), torch.zeros(4), torch.ones(4), torch.tensor(0)),
    ),
    Pattern(
        "running statistics by hand",
        running_statistics_by_hand,
        lambda: (torch.randn(6, 4), torch.zeros(4), torch.ones(4)),
    ),
    Pattern("addcdiv_", divide_into, _four),
    Pattern(
        "addmm_ into a gradient",
        accumulate_a_gradient,
        lambda: (torch.randn(3, 4), torch.randn(3, 4), torch.randn(1, 4), torch.randn(1, 3)),
    ),
    Pattern("masked_fill_ a gradient", scale_by_a_mask, lambda: (torch.randn(8, 4), torch.rand(8, 4) > 0.5)),
    Pattern(
        "swap with a shadow",
        swap_with_a_shadow,
        lambda: _four()[:2],
        copies=3,
        why="two inputs change places: that takes one more buffer and three moves",
    ),
)
