"""Random numbers, grad modes, autocast and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.doors import DOORS, Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

pytestmark = pytest.mark.usefixtures("alone")


# --- random numbers -----------------------------------------------------------------------------------------------


def case_dropout() -> Case:
    return Case(lambda x: F.dropout(x.sin(), 0.4) * F.dropout(x, 0.2), (leaf(4, 5),))


def case_every_kind_of_draw() -> Case:
    def f(x: Tensor) -> Tensor:
        made = x.detach().clone()
        drawn = [torch.rand_like(x), torch.randn(4, 5), torch.bernoulli(torch.full((4, 5), 0.3)), torch.randperm(5)]
        drawn += [torch.randint(0, 9, (4, 5)), torch.normal(made, 1.0), made.clone().uniform_(), made.clone().cauchy_()]
        drawn += [made.clone().exponential_(), made.clone().log_normal_(), made.clone().geometric_(0.3)]
        return x * sum(drawn[:4]) + sum(drawn[4:])

    return Case(f, (leaf(4, 5),))


def case_sampling() -> Case:
    def f(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        few = x[torch.multinomial(p.softmax(0), 3)]
        many = x[torch.multinomial(p.softmax(0), 9, replacement=True)]
        return few, many, torch.poisson(x.abs()), torch.binomial(torch.full((3,), 5.0), torch.full((3,), 0.4))

    return Case(f, (leaf(6), leaf(6)))


def case_draws_with_a_generator() -> Case:
    generator = torch.Generator().manual_seed(3)
    return Case(lambda x: x * torch.rand(3, generator=generator) + torch.rand(3), (leaf(3),))


def case_other_dropouts() -> Case:
    def f(x: Tensor) -> Tensor:
        y = F.alpha_dropout(x, 0.3, True) + F.feature_alpha_dropout(x, 0.3, True)
        return y + F.dropout2d(x, 0.5) + F.rrelu(x, training=True) + F.gumbel_softmax(x, hard=True)

    return Case(f, (leaf(2, 3, 4, 4),))


def case_distributions() -> Case:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        normal = torch.distributions.Normal(a, b.exp(), validate_args=False)
        beta = torch.distributions.Beta(a.exp(), b.exp(), validate_args=False)
        categorical = torch.distributions.Categorical(logits=a, validate_args=False)
        drawn, chosen = normal.rsample(), categorical.sample()
        return normal.log_prob(drawn), drawn, beta.rsample(), categorical.log_prob(chosen), chosen

    return Case(f, (leaf(3), leaf(3)))


# --- grad modes -------------------------------------------------------------------------------------------------------


def case_regions_without_gradients() -> Case:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            y = x * 2
            z = w * 3
            with torch.enable_grad():
                again = x.sin() * y
        torch.set_grad_enabled(False)
        last = x * 5
        torch.set_grad_enabled(True)
        return y * w, z, again, last * x

    return Case(f, (leaf(3), leaf(3)))


def case_a_region_with_gradients_in_one_without() -> Case:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            y = x.sin()
        return y * 2, x.detach(), y

    def without(x: Tensor) -> Any:
        with torch.no_grad():
            return f(x)

    return Case(without, (leaf(3),))


def case_inference_mode_inside() -> Case:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode():
            scale = x.sum() * 2
        return x * scale.clone()

    return Case(f, (leaf(3),))


def case_detached_in_place() -> Case:
    return Case(lambda x: (x.sin().detach_() * x, x.cos()), (leaf(3),))


def case_gradients_asked_for_inside() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((y**3).sum(), y)
        return x * gradient

    return Case(f, (leaf(3),))


# --- autocast -----------------------------------------------------------------------------------------------------


def case_autocast_inside() -> Case:
    layer = nn.Linear(4, 4)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(layer(x))  # one cast weight for both
            z = y.softmax(-1)
            with torch.autocast("cpu", enabled=False):
                exact = layer(y.float())
        return y, z, exact, layer(x)

    return Case(f, (leaf(3, 4),), module=layer)


def case_autocast_to_half() -> Case:
    layer = nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return layer(x).relu()

    return Case(f, (leaf(3, 4),), module=layer)


# --- dtypes -----------------------------------------------------------------------------------------------------------


def case_integers_and_booleans() -> Case:
    def f(a: Tensor, b: Tensor, mask: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        chosen = torch.where(mask, x, -x).masked_fill(a > 3, 0.5)
        return a // b, a % b, a & b, a << 1, a > b, a.argsort(), ~mask, mask.any(), chosen, a.float() * x

    mask = torch.tensor([True, False, True, True, False])
    return Case(f, (torch.arange(5), torch.tensor([3, 2, 1, 2, 3]), mask, leaf(5)))


def case_complex_numbers() -> Case:
    def f(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        y = z.sin()
        return y * z.conj(), y.cos().conj(), z.abs(), z.angle(), y.real * 2, torch.complex(x, x.exp()) * y

    return Case(f, (leaf(3, dtype=torch.complex64), leaf(3)))


def _products(dtype: torch.dtype) -> Case:
    return Case(lambda x, y: (x @ y).softmax(-1) + x.float().mean(), (leaf(4, 4, dtype=dtype), leaf(4, 4, dtype=dtype)))


def case_float64() -> Case:
    return _products(torch.float64)


def case_bfloat16() -> Case:
    return _products(torch.bfloat16)


def case_float16() -> Case:
    return _products(torch.float16)


def case_mixed_dtypes() -> Case:
    def f(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        return x * y + torch.ones(3, dtype=torch.int32) * s

    return Case(f, (leaf(3, dtype=torch.bfloat16), leaf(3), leaf(dtype=torch.float64)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does, by itself
@cases_of(globals(), in_pieces=("draws_with_a_generator", "gradients_asked_for_inside"), of=3)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)


def _around(function: Callable[..., Any], context: Callable[[], Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "enable_grad", "autocast"],
)
@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("door", DOORS)
def test_a_mode_around_the_call(context: Callable[[], Any], first: str, door: Door) -> None:
    """Called in the mode and out of it, in either order: each is like eager."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2), nn.Softmax(-1))
    compiled = door(net).call
    x = torch.randn(3, 4)
    for inside in [first == "inside", first != "inside"] * 2:
        expected = _around(net, context)(x) if inside else net(x)
        actual = _around(compiled, context)(x) if inside else compiled(x)
        assert actual.dtype is expected.dtype
        assert torch.equal(actual, expected)
        assert actual.requires_grad == expected.requires_grad
        assert actual.is_inference() == expected.is_inference()
        if expected.requires_grad:
            wanted = list(net.parameters())
            theirs = torch.autograd.grad(expected.sum(), wanted)
            mine = torch.autograd.grad(actual.sum(), wanted)
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
