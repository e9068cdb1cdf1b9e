"""Steps whose gradients are sparse matrices: embeddings, bags, gathered rows; with SparseAdam, SGD and Adagrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import DovetailError
from tests.rotation import rotated

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

Loss = Callable[[nn.Module, nn.Module, Tensor, Tensor], Tensor]
Makes = Callable[[Any], torch.optim.Optimizer]


def _table(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Embedding(10, 4, sparse=True, **options)


def _bag(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.EmbeddingBag(10, 4, sparse=True, **options)


def _looked_up(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items).sum(1)), labels)


def _twice(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items).sum(1) + table(items[:, 0])), labels)


def _one_row(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items[:1, :1]).sum(1)), labels[:1])


def _always_the_same(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items * 0).sum(1)), labels)


def selected(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items[labels > 0]).sum(1)), labels[labels > 0])


def _gathered(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    rows = torch.gather(table.weight, 0, items[:, :1].expand(-1, 4), sparse_grad=True)
    return F.cross_entropy(head(rows), labels)


def _in_bags(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(table(items)), labels)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _sparse_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(parameters), lr=0.1)


def _adagrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.1)


CASES: tuple[tuple[Makes, Callable[[], nn.Module], Loss], ...] = (
    (_sgd, _table(), _looked_up),
    (_sparse_adam, _table(), _looked_up),
    (_adagrad, _table(), _looked_up),
    (_sgd, _table(), _twice),
    (_sparse_adam, _table(), _twice),
    (_sparse_adam, _table(), _one_row),
    (_sparse_adam, _table(), _always_the_same),
    (_sparse_adam, _table(), selected),
    (_sparse_adam, _table(padding_idx=2), _looked_up),
    (_sgd, _table(max_norm=0.5), _looked_up),
    (_sgd, _table(), _gathered),
    (_sparse_adam, _table(), _gathered),
    (_sgd, _bag(), _in_bags),
    (_sparse_adam, _bag(mode="sum", padding_idx=1), _in_bags),
)


class _Twin:
    def __init__(self, make: Makes, table: Callable[[], nn.Module], loss: Loss) -> None:
        torch.manual_seed(0)
        self.table, self.head = table(), nn.Linear(4, 2)
        self.optimizers = [make(self.table.parameters()), torch.optim.SGD(self.head.parameters(), lr=0.1)]
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 2, 0.5)
        self.loss = loss

    def step(self, items: Tensor, labels: Tensor) -> Tensor:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(self.table, self.head, items, labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.schedule.step()
        return loss.detach()

    def state(self) -> list[Tensor]:
        held = [x for state in self.optimizers[0].state.values() for x in state.values() if isinstance(x, Tensor)]
        return [*self.table.parameters(), *self.head.parameters(), *held]


@pytest.mark.parametrize(("make", "table", "loss"), rotated(CASES, 2))
def test_sparse_gradients(make: Makes, table: Callable[[], nn.Module], loss: Loss) -> None:
    plain, other = _Twin(make, table, loss), _Twin(make, table, loss)
    compiled = dovetail.compile_step(other.step)
    drawn = torch.Generator().manual_seed(0)
    for _ in range(4):
        items, labels = torch.randint(0, 10, (6, 3), generator=drawn), torch.randint(0, 2, (6,), generator=drawn)
        assert torch.equal(compiled(items, labels), plain.step(items, labels))
        for a, b in zip(other.state(), plain.state(), strict=True):
            assert torch.equal(a, b), (a - b).abs().max()
    assert compiled.stats.captures == 1


def test_the_table_is_written_in_place() -> None:
    twin = _Twin(_sgd, _table(), _looked_up)
    compiled = dovetail.compile_step(twin.step)
    for _ in range(2):
        compiled(torch.ones(6, 3, dtype=torch.int64), torch.zeros(6, dtype=torch.int64))
    called = [str(node.target) for node in compiled.program.nodes]
    assert "dovetail.sparse_added_.default" in called
    assert "dovetail.sparse_added.default" not in called


def _tied(table: nn.Module, head: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(table(items).sum(1) @ table.weight.t(), labels)


@pytest.mark.parametrize(
    ("loss", "clears", "says"), [(_tied, True, r"aten\.add\.Tensor"), (_looked_up, False, "does not begin by dropping")]
)
def test_other_uses_are_refused_by_name(loss: Loss, clears: bool, says: str) -> None:
    twin = _Twin(_sgd, _table(), loss)
    if not clears:
        for optimizer in twin.optimizers:
            optimizer.zero_grad = lambda *_: None  # type: ignore[method-assign]
    compiled = dovetail.compile_step(twin.step)
    items, labels = torch.randint(0, 10, (6, 3)), torch.randint(0, 2, (6,))
    compiled(items, labels)
    before = [tensor.clone() for tensor in twin.state()]
    with pytest.raises(DovetailError, match=says):
        compiled(items, labels)
    assert all(map(torch.equal, before, twin.state()))


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError("no gradient")


def test_gradients_are_as_before_when_backward_fails_while_it_is_recorded() -> None:
    head, body = nn.Linear(4, 2), nn.Linear(4, 4)

    @dovetail.compile_step
    def step(x: Tensor) -> None:
        head.zero_grad()
        head(_Failing.apply(body(x))).sum().backward()

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no gradient"):
            step(torch.ones(3, 4))
        assert type(head.weight.grad) is Tensor
        assert head.weight.grad.sum() == head.weight.grad.sum()
