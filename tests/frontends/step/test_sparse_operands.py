"""Steps that multiply by a sparse matrix which is there before: an adjacency of a graph, COO or CSR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import DovetailError, OverlappingMutatedInputs, UnsupportedStep, UnsupportedTensor
from tests.frontends.step.agreement import programs_of
from tests.rotation import rotated

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
]
NODES = 12
Product = Callable[[Tensor, Tensor], Tensor]

PRODUCTS: dict[str, Product] = {
    "spmm": torch.spmm,
    "sparse.mm": torch.sparse.mm,
    "mm": torch.mm,
    "matmul": lambda a, x: a @ x,
    "transposed": lambda a, x: a.t() @ x,
    "twice transposed": lambda a, x: a.t().transpose(0, 1) @ x,
    "vectors": lambda a, x: torch.stack([torch.mv(a, column) for column in x.unbind(1)], 1),
    "addmm": lambda a, x: torch.addmm(x[0], a, x),
    "sparse.addmm": lambda a, x: torch.sparse.addmm(x, a, x, beta=0.5, alpha=2.0),
    "columns in order": lambda a, x: a @ x.t().contiguous().t(),
    "coalesce": lambda a, x: (a.coalesce() if a.is_sparse and a.is_coalesced() else a) @ x / max(a._nnz(), 1),
}


def _links(seed: int) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(NODES, NODES, generator=drawn) * (torch.rand(NODES, NODES, generator=drawn) < 0.4)


def _coalesced(dense: Tensor) -> Tensor:
    return dense.to_sparse()


def _with_duplicates(dense: Tensor) -> Tensor:
    made = dense.to_sparse()
    indices, values = made.indices(), made.values()
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices[:, :3]], 1), torch.cat([values, values[:3]]), dense.shape, check_invariants=False
    )


def _csr(dense: Tensor) -> Tensor:
    return dense.to_sparse_csr()


def _values(matrix: Tensor) -> Tensor:
    return matrix.values() if matrix.layout is torch.sparse_csr else matrix._values()


class _Net(nn.Module):
    def __init__(self, matrix: Tensor, product: Product) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)
        self.register_buffer("matrix", matrix)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.matrix, self.second(self.product(self.matrix, self.first(x)).relu()))


class _Side:
    def __init__(self, make: Callable[[Tensor], Tensor], product: Product) -> None:
        torch.manual_seed(0)
        self.make = make
        self.net = _Net(make(_links(0)), product)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.01)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def change(self, turn: int) -> None:
        """What happens to the matrix between calls: other values, another matrix, one with other indices."""
        if turn == 2:
            _values(self.net.matrix).mul_(0.5)
        if turn in (4, 6):
            self.net.matrix = self.make(_links(turn))
        if turn == 5:
            self.net.matrix = self.net.matrix.clone()
            _values(self.net.matrix).add_(0.25)

    def state(self) -> list[Tensor]:
        weights = list(self.net.parameters())
        held = [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        return [*weights, *(w.grad for w in weights if w.grad is not None), *held, self.net.matrix.to_dense()]


CASES = [(make, name) for make in (_coalesced, _with_duplicates, _csr) for name in PRODUCTS]


@pytest.mark.parametrize(("make", "product"), rotated(CASES, 2))
def test_products_are_those_of_eager_mode(make: Callable[[Tensor], Tensor], product: str) -> None:
    plain, other = _Side(make, PRODUCTS[product]), _Side(make, PRODUCTS[product])
    compiled = dovetail.compile_step(other.step, keep_grads=True)
    for turn in range(7):
        x, y = torch.randn(NODES, 5), torch.randint(0, 3, (NODES,))
        for side in (plain, other):
            side.change(turn)
        assert torch.equal(compiled(x, y), plain.step(x, y))
        for a, b in zip(other.state(), plain.state(), strict=True):
            assert torch.equal(a, b), (turn, (a - b).abs().max())
            assert a.stride() == b.stride()
    assert programs_of(compiled.stats) == 3  # one for each number of values
    assert type(other.net.matrix) is Tensor


def _scaled(matrix: Tensor, weight: Tensor) -> list[Tensor]:
    out = (matrix @ weight).square().sum()
    return [out.detach(), *torch.autograd.grad(out, [weight])]


def test_arguments_are_read_anew_in_each_call() -> None:
    weight = nn.Parameter(torch.randn(NODES, 3))
    compiled = dovetail.compile_step(lambda matrix: _scaled(matrix, weight))
    made: list[Callable[[Tensor], Tensor]] = [_coalesced, lambda dense: dense, _csr]
    for turn in range(12):
        matrix = made[turn % 3](_links(turn // 6))
        assert all(map(torch.equal, compiled(matrix), _scaled(matrix, weight)))
    assert compiled.stats.captures == 5  # dense, and each layout with each number of values


def test_sizes_of_dense_operands_may_be_symbols() -> None:
    matrix = _links(0).to_sparse()
    compiled = dovetail.compile_step(lambda x: matrix @ x, dynamic=True)
    for width in (2, 3, 5, 7):
        x = torch.randn(NODES, width)
        assert torch.equal(compiled(x), matrix @ x)
    assert compiled.stats.captures == 1


@pytest.mark.parametrize("size", [(0, NODES), (4, NODES)])
def test_matrices_without_values_and_rectangles(size: tuple[int, int]) -> None:
    weight = nn.Parameter(torch.randn(NODES, 3))
    for matrix in (torch.zeros(size).to_sparse(), torch.zeros(size).to_sparse_csr(), _links(0)[: size[0]].to_sparse()):
        compiled = dovetail.compile_step(lambda matrix=matrix: _scaled(matrix, weight))
        for _ in range(3):
            assert all(map(torch.equal, compiled(), _scaled(matrix, weight)))


def test_second_derivatives() -> None:
    matrix, weight = _links(0).to_sparse_csr(), nn.Parameter(torch.randn(NODES, 3))

    def step() -> Tensor:
        (first,) = torch.autograd.grad((matrix @ weight).pow(3).sum(), weight, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        assert torch.equal(compiled(), step())


@pytest.mark.parametrize("make", [_coalesced, _with_duplicates, _csr])
def test_what_a_matrix_tells_of_itself(make: Callable[[Tensor], Tensor]) -> None:
    matrix = make(_links(0))

    def step() -> tuple[Any, ...]:
        turned = matrix.t()
        own = (matrix._nnz(), matrix.sparse_dim(), matrix.dense_dim(), matrix.shape, matrix.layout, matrix.is_sparse)
        return *own, turned._nnz(), turned.shape, turned.layout, matrix.requires_grad, matrix.is_leaf, matrix.dtype

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        assert compiled() == step()


def test_sparse_mm_under_autocast_is_refused() -> None:
    matrix, weight = _links(0).to_sparse(), torch.randn(NODES, 3)

    def step() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.sparse.mm(matrix, weight)

    compiled = dovetail.compile_step(step)
    assert compiled().dtype is torch.bfloat16
    with pytest.raises(UnsupportedStep, match="under autocast"):
        compiled()


OTHERWISE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "to_dense": lambda a, x: a.to_dense() @ x,
    "sparse times sparse": lambda a, x: (a @ a) @ x,
    "written": lambda a, x: a.mul_(2) @ x,
    "its values": lambda a, x: a._values().sum() * x,
    "returned": lambda a, x: a,
    "in a list": lambda a, x: torch.cat([a, a]).to_dense(),
    "out=": lambda a, x: torch.mm(a, x, out=torch.empty(NODES, 3)),
    "in place": lambda a, x: x.clone().addmm_(a, x),
    "shown": lambda a, x: x * len(repr(a)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_uses_are_refused_by_name(name: str) -> None:
    matrix, weight = _links(0).to_sparse(), torch.randn(NODES, 3)
    compiled = dovetail.compile_step(lambda: OTHERWISE[name](matrix, weight))
    compiled()
    before = matrix.to_dense()
    with pytest.raises(UnsupportedStep, match="uses variable matrix, a sparse matrix, for more than products"):
        compiled()
    assert type(matrix) is Tensor
    assert torch.equal(matrix.to_dense(), before)


def test_other_matrices_are_refused_by_name() -> None:
    weight = torch.randn(NODES, 3)
    dense = _links(0)
    for matrix in (dense.to_sparse().requires_grad_(), dense.to_sparse_csr().requires_grad_()):
        compiled = dovetail.compile_step(lambda matrix: matrix @ weight)
        compiled(matrix)
        with pytest.raises(UnsupportedTensor, match="compile_step"):
            compiled(matrix)


def test_a_matrix_that_the_step_reaches_twice_is_refused() -> None:
    held, weight = _links(0).to_sparse(), torch.randn(NODES, 3)
    compiled = dovetail.compile_step(lambda given: held @ weight + (0 if given is held else given @ weight))
    other = held.clone()
    for _ in range(3):
        assert torch.equal(compiled(other), held @ weight + other @ weight)
    with pytest.raises(UnsupportedTensor, match="reaches otherwise as well"):
        compiled(held)


def test_values_that_share_memory_with_what_the_step_writes() -> None:
    made = _links(0).to_sparse()
    values, weight = made.values().clone(), torch.randn(NODES, 3)
    matrix = torch.sparse_coo_tensor(made.indices(), values, made.shape, check_invariants=False)
    reading = dovetail.compile_step(lambda: matrix @ weight + values.sum())
    for _ in range(3):
        assert torch.equal(reading(), matrix @ weight + values.sum())
        values.mul_(0.5)

    def writing() -> Tensor:
        out = matrix @ weight
        values.mul_(0.5)
        return out

    compiled = dovetail.compile_step(writing)
    compiled()
    with pytest.raises(OverlappingMutatedInputs, match=r"variable matrix\.values"):
        compiled()


def test_a_matrix_that_gets_a_gradient_in_the_step_is_refused() -> None:
    weight = torch.randn(NODES, 3)
    compiled = dovetail.compile_step(lambda matrix: matrix.requires_grad_() @ weight)
    compiled(_links(0).to_sparse())
    with pytest.raises(DovetailError):
        compiled(_links(0).to_sparse())


def test_explained() -> None:
    matrix = _links(0).to_sparse()
    compiled = dovetail.compile_step(lambda x: matrix @ x)
    for _ in range(2):
        compiled(torch.ones(NODES, 2))
    assert any("sparse_product" in str(node.target) for node in compiled.program.nodes)
    assert "variable matrix.values" in str(compiled.explain())
