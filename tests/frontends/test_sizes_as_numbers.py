"""Sizes that are symbols, as the numbers that compiled functions and frozen models take them for: in texts, keys,
functions of `math` and NumPy, questions and results. Everything is compared with eager mode, bit by bit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from tests.alike import assert_alike

LENGTHS = (8, 8, 5, 7, 3, 8)
X = torch.randn(20, generator=torch.Generator().manual_seed(0))
Function = Callable[[Tensor], Any]


@functools.lru_cache(None)
def remembered(n: int) -> float:
    return math.sqrt(n) / 2


def by_match(x: Tensor) -> Any:
    match len(x):
        case 8:
            return x * 2
        case 5 | 7:
            return x * 3
        case _:
            return x / 2


def powers_of_a_number(x: Tensor) -> Any:
    k = len(x)
    for n in range(100):
        k = k + 1 if n % 2 else k * 2 - k
    return x.new_zeros(k), k


def with_a_gradient(x: Tensor) -> Any:
    weight = torch.ones(6, requires_grad=True) * math.sqrt(len(x))
    return ((x * weight).sum(0) / len(x)).detach()


ONE_PROGRAM: dict[str, Function] = {
    "results": lambda x: (x * 2, len(x), x.shape[0] // 2, x.numel() / 3, x.shape, {"n": x.size(0)}),
    "parts": lambda x: (x * 2, divmod(len(x), 3), -(len(x) // -3), (len(x) - 20) // 7, (len(x) - 20) % 7),
    "math": lambda x: x * math.log(len(x) + 0.5) / math.sqrt(x.shape[0]),
    "floats in order": lambda x: x * (0.1 * len(x) * 0.3 * 0.7) + (0.3 + len(x) / 7 - 0.1),
    "a tensor of sizes": lambda x: (x * torch.tensor(len(x)), torch.tensor([len(x), 1]), torch.as_tensor(x.shape)),
    "rounded": lambda x: (x * round(len(x) * 0.37, 2), x[math.ceil(len(x) / 3) :], x[: int(len(x) * 0.6)]),
    "chosen": lambda x: (x * max(len(x), 2), min(len(x) / 2, 90.0)),
    "classes": lambda x: (x, isinstance(len(x), int), type(x.shape[0]) is int, x.shape == (len(x), 6)),
    "a drawn index": lambda x: x[torch.randint(0, len(x), (len(x),), generator=torch.default_generator)],
    "powers": powers_of_a_number,
    "gradients": with_a_gradient,
}
MORE: dict[str, Function] = {
    "texts": lambda x: (x * 2, f"{x.shape[0]} rows {tuple(x.shape)} {x.shape} {len(x) / 3:.2f}"),
    "numpy": lambda x: x * float(np.sqrt(len(x))),
    "keys": lambda x: x * {8: 1.0, 5: 2.0}.get(len(x), 3.0),
    "keys of results": lambda x: {len(x): x * 2},
    "remembered": lambda x: x * remembered(len(x)),
    "bits": lambda x: x * len(x).bit_length(),
    "a member": lambda x: x * (2.0 if len(x) in (3, 5) else 1.0),
    "match": by_match,
}


@pytest.mark.parametrize("name", [*ONE_PROGRAM, *MORE])
def test_sizes_are_numbers_of_each_call(name: str) -> None:
    function = ONE_PROGRAM.get(name) or MORE[name]
    compiled = dovetail.compile(function, dynamic=True)
    for number, length in enumerate(LENGTHS):
        x = torch.randn(length, 6)
        torch.manual_seed(number)
        wanted = function(x)
        torch.manual_seed(number)
        assert_alike(compiled(x), wanted)
    if name in ONE_PROGRAM:
        assert compiled.stats.captures == 1


def test_scores_are_scaled_by_their_number_also_backward() -> None:
    layer = nn.Linear(6, 6)

    def attention(x: Tensor) -> Tensor:
        scores = layer(x) @ x.T * (math.log(len(x)) / math.sqrt(len(x)))
        return F.softmax(scores, -1) @ x

    compiled = dovetail.compile(attention, dynamic=True)
    for length in LENGTHS:
        x = torch.randn(length, 6)
        found = [compiled(x), *torch.autograd.grad(compiled(x).sum(), list(layer.parameters()))]
        wanted = [attention(x), *torch.autograd.grad(attention(x).sum(), list(layer.parameters()))]
        assert all(map(torch.equal, found, wanted))
    assert compiled.stats.captures == 1


ROUNDED = [
    math.trunc,
    round,
    math.floor,
    math.ceil,
    lambda a: int(a * 2),
    lambda a: round(a / 3),
    lambda a: int(int(a) / 2),
]


@pytest.mark.parametrize("rounded", ROUNDED)
def test_a_rounded_number_off_a_tensor_is_a_size(rounded: Callable[[float], int]) -> None:
    def function(x: Tensor) -> Any:
        n = rounded(x.sum().item())
        return x[:n] * 2, torch.zeros(n) + x.sum(), x.new_ones(n, 2).sum(1)

    compiled = dovetail.compile(function)
    for total in (5.5, 2.5, 3.5, 1.2, 0.5, 0.1, 6.0):
        x = torch.tensor([total - 1, 1.0, 0, 0, 0, 0, 0, 0])
        assert_alike(compiled(x), function(x))
    assert compiled.stats.captures <= 2  # the second one knows that data decide sizes
    with pytest.raises(ValueError, match="NaN"):
        compiled(torch.full((8,), math.nan))


@pytest.mark.parametrize("rounded", ROUNDED)
def test_a_rounded_number_of_a_call_is_a_size(rounded: Callable[[float], int]) -> None:
    compiled = dovetail.compile(lambda x, a: (x[: rounded(a)] * 2, torch.zeros(rounded(a))))
    for number in (8.4, 7.5, 6.5, 9.9, 10.1, 12.0, 11.49):
        assert_alike(compiled(X, number), (X[: rounded(number)] * 2, torch.zeros(rounded(number))))
    assert compiled.stats.captures <= 4  # of 7 calls: the last one is for many numbers


@pytest.mark.parametrize("value", [0.3, -2.5, float("nan"), float("inf"), -0.0])
@pytest.mark.parametrize(
    "compute",
    [
        lambda a: a * 0.1 * 0.3 * 0.7,
        lambda a: a * 0,
        lambda a: a - a,
        lambda a: (a + a * 0.1 + a * 0.2) * 3,
        lambda a: a**2 * 0.1 - 0.1 * a,
        lambda a: a / 3 * 3 + 1 / (2 + abs(a - a)),
        lambda a: -(-a * 0.3) / 0.3,
        lambda a: max(a, 0.5) * math.tanh(a),
        lambda a: (a, isinstance(a, float), type(a) is float),
    ],
)
def test_numbers_off_tensors_are_computed_with_as_python_does(compute: Callable[[float], Any], value: float) -> None:
    compiled = dovetail.compile(lambda x: compute(x.sum().item()))
    assert repr(compiled(torch.tensor([value, 0.0]))) == repr(compute(torch.tensor([value, 0.0]).sum().item()))


def check_positive(x: Tensor) -> Tensor:
    a = x.sum().item()
    torch._check(a > 0)
    return x * a


def raise_if_negative(x: Tensor) -> Tensor:
    a = x.sum().item()
    if a < 0:
        raise ValueError("negative")
    return x * a


def raise_unless_less(x: Tensor) -> Tensor:
    a = x.sum().item()
    if not a < 100.0:  # or NaN
        raise ValueError("too large")
    return x * a


@pytest.mark.parametrize("function", [check_positive, raise_if_negative, raise_unless_less])
def test_checks_of_numbers_off_tensors_are_made_by_the_program(function: Function) -> None:
    compiled = dovetail.compile(function)
    for values in ([1.0, 2.0], [3.0, -1.0], [-3.0, -1.0], [float("nan"), 1.0]):
        try:
            wanted = function(torch.tensor(values))
        except (RuntimeError, ValueError, AssertionError):
            with pytest.raises(dovetail.DovetailError, match="a number that data decide is not as expected"):
                compiled(torch.tensor(values))
        else:
            assert torch.equal(compiled(torch.tensor(values)).nan_to_num(7), wanted.nan_to_num(7))
    assert compiled.stats.captures == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_counts_of_data_beside_sizes(dynamic: bool) -> None:
    def counted(x: Tensor, mask: Tensor) -> Any:
        k, n = mask.sum().item(), len(x)
        torch._check(k <= n)
        torch._check(k >= 1)
        chosen = x[mask]
        return x[:k], n - k, k + n, (n * 2 - k) * 0.5, k * 0.1 * 0.3, chosen * len(chosen), len(chosen) / n

    compiled = dovetail.compile(counted, dynamic=dynamic)
    for rows in (8, 5, 8, 9):
        x, mask = torch.randn(rows, 3), torch.arange(rows) <= rows // 2
        assert_alike(compiled(x, mask), counted(x, mask))
    assert compiled.stats.captures == (1 if dynamic else 3)


def test_a_size_that_torch_cannot_follow_is_known() -> None:
    def cut(x: Tensor, y: Tensor) -> Tensor:
        return x[: (2 * len(x) - len(y)) % (len(x) + 1)] + 1

    for compile_it in (dovetail.compile, dovetail.compile_step):
        compiled: Any = compile_it(cut, dynamic=True)
        for rows, others in ((8, 3), (5, 4), (8, 3)):
            x, y = torch.randn(rows, 2), torch.randn(others, 2)
            assert torch.equal(compiled(x, y), cut(x, y))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (0.1 * x.shape[0] * 0.3 * 0.7),
        lambda x: x / x.shape[0] ** 0.5 * (1 / x.size(0) + 0.7 / 3 * x.size(0)) + (0.3 + x.shape[0] / 7 - 0.1),
        lambda x: x[: int(0.6 * x.shape[0])] * math.sqrt(x.shape[0] * 0.1 * 0.3),
        lambda x: torch.full((x.shape[0],), 0.1 * x.shape[0] * 0.3 * 0.7, dtype=torch.float64),
    ],
)
def test_graphs_of_dynamo_compute_floats_of_sizes_as_python_does(function: Function) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="dovetail", dynamic=True)
    for length in (7, 9, 13, 11, 7):
        x = torch.randn(length, 6, dtype=torch.float64)
        assert torch.equal(compiled(x), function(x))


class Net(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda f, x: f(x) / math.sqrt(len(x)),
        lambda f, x: f(x) * math.log(len(x) + 1) * 0.1 * 0.3,
        lambda f, x: f(x) * divmod(len(x), 3)[1],
        lambda f, x: f(x) * (1 if isinstance(x.shape[0], int) else 5),
    ],
)
def test_frozen_models_compute_with_any_size(function: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path) -> None:
    model = Net(function).eval()
    frozen = dovetail.freeze(model, (torch.randn(4, 6),))
    frozen.save(tmp_path / "net.dovetail")
    loaded = dovetail.load(tmp_path / "net.dovetail")
    for length in (4, 9, 1, 2, 17):
        x = torch.randn(length, 6)
        wanted = model(x)
        assert torch.equal(frozen(x), wanted)
        assert torch.equal(loaded(x), wanted)


def test_a_text_of_a_size_fixes_it() -> None:
    frozen = dovetail.freeze(Net(lambda f, x: f(x) * len(f"{len(x)}")).eval(), (torch.randn(4, 6),))
    with pytest.raises(dovetail.DovetailError, match="dimension 0 of x is fixed to 4"):
        frozen(torch.randn(12, 6))
