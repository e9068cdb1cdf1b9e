"""What torch's C++ decides by looking at a tensor is decided alike in each door, with a gradient and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.usefixtures("alone")

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "eigvals": lambda x: torch.linalg.eigvals(x).abs(),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "nuclear": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "norm": lambda x: torch.linalg.norm(x, -2, dim=(1, 2)),
    "old_norm": lambda x: torch.norm(x[0], p="nuc"),
    "method": lambda x: x[0].norm("nuc"),
    "cond": torch.linalg.cond,
    "rank": torch.linalg.matrix_rank,
    "svd": lambda x: torch.svd(x, compute_uv=False)[1],
    "svd_method": lambda x: x.svd(True, False)[1],
    "vectors": lambda x: torch.linalg.svd(x, full_matrices=False)[1],
}


class _Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _frozen(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return dovetail.freeze(_Module(function), (x,))


DOORS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "compile": lambda function, _: dovetail.compile(function),
    "dynamo": lambda function, _: torch.compile(function, backend="dovetail"),
    "step": lambda function, _: dovetail.compile_step(function),
    "freeze": _frozen,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_alone(name: str, door: str) -> None:
    x = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(4))
    called = DOORS[door](FUNCTIONS[name], x)
    for _ in range(2):
        assert torch.equal(called(x), FUNCTIONS[name](x))


@pytest.mark.parametrize("door", ["compile", "dynamo"])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "rank"])
def test_values_with_a_gradient(name: str, door: str) -> None:
    made = []
    x = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(4))
    for called in (FUNCTIONS[name], DOORS[door](FUNCTIONS[name], x)):
        leaf = x.clone().requires_grad_()
        result = called(leaf)
        result.sum().backward()
        made.append((result.detach(), leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_values_of_many_matrices_at_once() -> None:
    x = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(4))
    mapped = torch.vmap(torch.linalg.svdvals)
    assert torch.equal(dovetail.compile(mapped)(x), mapped(x))


@pytest.mark.parametrize("options", [{}, {"dynamic_shapes": "static"}])
def test_a_function_of_torch_that_its_own_method_calls(options: dict[str, Any]) -> None:
    x = torch.randn(3, 8)
    module = _Module(lambda x: x.unflatten(1, (2, 4)) * 2)
    assert torch.equal(dovetail.freeze(module, (x,), **options)(x), module(x))


def test_a_transformer_with_a_decoder() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    source, target = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    frozen = dovetail.freeze(model, (source, target))
    more = (torch.randn(5, 5, 8), torch.randn(5, 4, 8))
    with torch.no_grad():
        assert torch.equal(frozen(*more), model(*more))
