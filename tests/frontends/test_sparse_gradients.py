"""Sparse gradients that compiled functions give: embeddings, bags and gathered rows, with eager mode's optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DataDependentControlFlow, UnsupportedTensor
from tests.frontends.step.test_sparse_gradients import CASES, Loss, Makes, selected
from tests.rotation import rotated

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
Door = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
DOORS: dict[str, Door] = {
    "compile": dovetail.compile,
    "torch.compile": lambda f: torch.compile(f, backend="dovetail"),
    "eager": lambda f: f,
}


class _Model(nn.Module):
    def __init__(self, table: Callable[[], nn.Module], loss: Loss) -> None:
        super().__init__()
        self.table, self.head, self.loss = table(), nn.Linear(4, 2), loss

    def forward(self, items: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.table, self.head, items, labels)


def _look(tensor: Tensor | None) -> list[Any]:
    if tensor is None or tensor.layout is torch.strided:
        return [tensor]
    return [tensor.layout, tuple(tensor.shape), tensor.is_coalesced(), tensor._indices(), tensor._values()]


def _trained(door: Door, make: Makes, table: Callable[[], nn.Module], loss: Loss) -> list[list[Any]]:
    """What is to be seen after each of some steps."""
    torch.manual_seed(0)
    model = _Model(table, loss)
    called = door(model)
    optimizers = [make(model.table.parameters()), torch.optim.SGD(model.head.parameters(), lr=0.1)]
    drawn = torch.Generator().manual_seed(0)
    found: list[list[Any]] = []
    for turn in range(4):
        items, labels = torch.randint(0, 10, (6, 3), generator=drawn), torch.randint(0, 2, (6,), generator=drawn)
        for _ in range(1 + turn // 2):  # gradients add up
            out = called(items, labels)
            out.backward()
        seen: list[Any] = [out.detach()]
        for weight in model.parameters():
            seen += _look(weight.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append([*seen, *(weight.detach().clone() for weight in model.parameters())])
    return found


TAKEN = [case for case in CASES if case[1]().padding_idx is None]


@pytest.mark.parametrize("door", ["compile", "torch.compile"])
@pytest.mark.parametrize(("make", "table", "loss"), rotated(TAKEN, 2))
def test_sparse_gradients(make: Makes, table: Callable[[], nn.Module], loss: Loss, door: str) -> None:
    if loss is selected and door == "compile":  # so many rows as data select
        with pytest.raises(DataDependentControlFlow):
            _trained(DOORS[door], make, table, loss)
        return
    found, expected = (_trained(DOORS[name], make, table, loss) for name in (door, "eager"))
    for turn, (these, those) in enumerate(zip(found, expected, strict=True)):
        assert len(these) == len(those)
        for place, (a, b) in enumerate(zip(these, those, strict=True)):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, (turn, place, a, b)


def test_gradients_of_arguments() -> None:
    def rows(table: Tensor, places: Tensor) -> Tensor:
        return nn.functional.embedding(places, table, sparse=True).sin()

    table, places = torch.randn(5, 3, requires_grad=True), torch.tensor([1, 1, 4])
    given = torch.randn(3, 3)
    (found,) = torch.autograd.grad(dovetail.compile(rows)(table, places), table, given)
    (expected,) = torch.autograd.grad(rows(table, places), table, given)
    for a, b in zip(_look(found), _look(expected), strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_gradients_without_the_rows_of_padding_depend_on_data() -> None:
    """How many rows such a gradient has is known only when it is computed."""
    table = nn.Embedding(5, 3, sparse=True, padding_idx=0)
    with pytest.raises(DataDependentControlFlow):
        dovetail.compile(table)(torch.tensor([1, 0])).sum().backward()


def test_sparse_gradients_of_what_is_computed_are_refused() -> None:
    compiled = dovetail.compile(lambda w, i: nn.functional.embedding(i, w * 2, sparse=True))
    with pytest.raises(UnsupportedTensor, match="sparse"):
        compiled(torch.randn(5, 3, requires_grad=True), torch.tensor([1, 2])).sum().backward()


_DOORS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda module: module,
    "compile": dovetail.compile,
    "backend": lambda module: torch.compile(module, backend="dovetail"),
}


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("is_weighted", "has_end", "is_flat"), [(0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1), (1, 0, 0), (0, 0, 0)]
)
def test_sums_over_bags(door: str, dtype: torch.dtype, is_weighted: int, has_end: int, is_flat: int) -> None:
    """Their kernels do not say in which bag an index is: gradients were those of no index, or an error of torch's."""
    found = []
    for wrap in (_DOORS["eager"], _DOORS[door]):
        torch.compiler.reset()
        torch.manual_seed(0)
        bag = torch.nn.EmbeddingBag(9, 4, mode="sum", sparse=True, include_last_offset=bool(has_end), dtype=dtype)
        called = wrap(bag)
        indices = torch.randint(9, (10,) if is_flat else (5, 2))
        offsets = torch.tensor([0, 3, 3, 7, *([10] * has_end)]) if is_flat else None
        weights = torch.rand(indices.shape, dtype=dtype).requires_grad_() if is_weighted else None
        called(indices, offsets, per_sample_weights=weights).square().sum().backward()
        gradient = bag.weight.grad
        assert gradient is not None, "backward has made it"
        parts = gradient._indices().tolist(), gradient._values().tolist()
        found.append((parts, None if weights is None or weights.grad is None else weights.grad.tolist()))
    assert found[0] == found[1]
