"""Sparse matrices as arguments, in modules and in closures of compiled functions: products are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadArtifact, NotFreezable, UnsupportedTensor
from tests.rotation import rotated

NODES = 8
pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta:UserWarning")


def _links(seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    dense = torch.rand(NODES, NODES, generator=made)
    return dense * (dense < 0.4)


def _with_duplicates(dense: Tensor) -> Tensor:
    made = dense.to_sparse()
    indices, values = torch.cat([made.indices()] * 2, 1), torch.cat([made.values()] * 2)
    return torch.sparse_coo_tensor(indices, values, dense.shape, check_invariants=False)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "coo with duplicates": _with_duplicates,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
    "bsc": lambda dense: dense.to_sparse_bsc((2, 2)),
}
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda a, x: a @ x,
    "spmm": torch.spmm,
    "sparse.mm": torch.sparse.mm,
    "addmm": lambda a, x: torch.addmm(x, a, x, beta=0.5, alpha=2),
    "sparse.addmm": lambda a, x: torch.sparse.addmm(x, a, x),
    "transposed": lambda a, x: a.t() @ x,
    "vector": lambda a, x: a @ x[:, 0],
    "from the right": lambda a, x: x.t() @ a,
    "layout of the result": lambda a, x: (x.t() @ a).t().contiguous().view(-1) * 2,
    "linear": lambda a, x: F.linear(x.t(), a),
    "twice": lambda a, x: a @ (a @ x).relu(),
}
CASES = [(layout, product) for layout in LAYOUTS for product in PRODUCTS]


def _results(function: Callable[..., Tensor], *given: Tensor) -> list[Any]:
    """What a call gives with its gradients, or the error that it, or backward, raises."""
    leaves = [x for x in given if x.requires_grad]
    try:
        out = function(*given)
    except RuntimeError as error:
        return ["forward", str(error).split("\n")[0]]
    found: list[Any] = [out, out.stride()]
    try:
        gradients = torch.autograd.grad(out.square().sum(), leaves)
    except RuntimeError as error:
        return [*found, "backward", str(error).split("\n")[0]]
    return [*found, *gradients, *(g.stride() for g in gradients)]


def _are_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(first, second, strict=True)
    )


def _weight(seed: int) -> Tensor:
    return torch.randn(NODES, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize(("layout", "product"), rotated(CASES, 3))
def test_arguments(layout: str, product: str) -> None:
    function, make = PRODUCTS[product], LAYOUTS[layout]
    compiled = dovetail.compile(function)
    for turn in range(4):
        matrix, x = make(_links(turn // 2)), _weight(turn)
        assert _are_same(_results(compiled, matrix, x), _results(function, matrix, x)), (layout, product, turn)


class Net(nn.Module):
    """A graph convolution whose adjacency is a buffer, or an attribute."""

    matrix: Tensor

    def __init__(self, matrix: Tensor, product: Callable[[Tensor, Tensor], Tensor], *, is_buffer: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.product = product
        if is_buffer:
            self.register_buffer("matrix", matrix)
        else:
            self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.matrix, self.linear(x)).relu()


@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize(("layout", "product"), rotated(CASES, 3))
def test_modules(layout: str, product: str, is_buffer: bool) -> None:
    make = LAYOUTS[layout]
    net = Net(make(_links(0)), PRODUCTS[product], is_buffer=is_buffer)
    compiled = dovetail.compile(net)
    for turn in range(6):
        if turn == 2:
            _values(net.matrix).mul_(0.5)
        if turn == 4:
            net.matrix = make(_links(1))
        if turn == 5:
            net.matrix.mul_(2) if layout != "bsc" else net.matrix.values().mul_(2)
        given = [_weight(turn), *net.parameters()]
        expected = _results(lambda x, *_: net(x), *given)
        assert _are_same(_results(lambda x, *_: compiled(x), *given), expected), turn


def _values(matrix: Tensor) -> Tensor:
    with torch.no_grad():
        return matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_closures_see_what_happens_to_the_matrix(layout: str) -> None:
    matrix = LAYOUTS[layout](_links(0))
    product = PRODUCTS["from the right" if layout == "bsc" else "@"]

    def function(x: Tensor) -> Tensor:
        return product(matrix, x) * 2

    compiled = dovetail.compile(function)
    for turn in range(6):
        if turn == 1:
            _values(matrix).mul_(0.5)
        if turn == 2 and not layout.startswith("bs"):
            matrix.mul_(0.5)
        if turn == 3:
            matrix = LAYOUTS[layout](_links(1))
        if turn == 4 and layout.startswith("coo"):
            matrix.zero_()
        if turn == 5 and layout.startswith("coo"):
            matrix.add_(_links(2).to_sparse())
        x = _weight(turn)
        assert _are_same(_results(compiled, x), _results(function, x)), turn


def test_dynamo_leaves_them_to_eager_mode() -> None:
    net = Net(_links(0).to_sparse(), torch.sparse.mm, is_buffer=True)
    compiled = torch.compile(net, backend="dovetail")
    x = _weight(0)
    given = [x, *net.parameters()]
    assert _are_same(_results(lambda *_: compiled(x), *given), _results(lambda *_: net(x), *given))


def test_sizes_of_dense_operands_may_be_symbols() -> None:
    matrix = _links(0).to_sparse()
    compiled = dovetail.compile(torch.mm, dynamic=True)
    for width in (2, 3, 5, 7):
        x = torch.randn(NODES, width)
        assert torch.equal(compiled(matrix, x), matrix @ x)
    assert len(compiled.graphs) == 1


def test_a_matrix_that_is_handed_back_is_the_same_object() -> None:
    matrix = _links(0).to_sparse()
    compiled = dovetail.compile(lambda a, x: (a, a @ x))
    x = _weight(0)
    assert compiled(matrix, x)[0] is matrix
    assert torch.equal(compiled(matrix, x)[1], matrix @ x)


CASTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "double": lambda a, x: a.double() @ x.double(),
    "@": lambda a, x: a @ x,
    "addmm": lambda a, x: torch.addmm(x, a, x),
    "vector": lambda a, x: a.t() @ x[:, 0],
    "without autocast": torch.sparse.mm,
}


@pytest.mark.parametrize("layout", ["coo", "coo with duplicates", "csr"])
@pytest.mark.parametrize("name", CASTS)
def test_casts(name: str, layout: str) -> None:
    """Eager mode has no kernel for CSR in bfloat16, and says so."""
    matrix, is_cast = LAYOUTS[layout](_links(0)), name != "without autocast"

    def function(a: Tensor, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast and name != "double"):
            return CASTS[name](a, x)

    found, expected = (_results(call, matrix, _weight(0)) for call in (dovetail.compile(function), function))
    assert _are_same(found, expected), (found, expected)


def test_sparse_mm_under_autocast_is_refused() -> None:
    """Its kernel calls an operator that autocast casts, which a program would not see."""
    compiled = dovetail.compile(torch.sparse.mm)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsupportedTensor, match="under autocast"):
        compiled(_links(0).to_sparse(), _weight(0))


def test_a_compiler_of_the_users_gets_the_parts() -> None:
    matrix, x = _links(0).to_sparse(), _weight(0)
    compiled = dovetail.aot_function(torch.sparse.mm, fw_compiler=lambda graph, inputs: graph)
    assert _are_same(_results(compiled, matrix, x), _results(torch.sparse.mm, matrix, x))


OTHERWISE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "to_dense": lambda a, x: a.to_dense() @ x,
    "sparse times sparse": lambda a, x: (a @ a) @ x,
    "written": lambda a, x: a.mul_(2) @ x,
    "its values": lambda a, x: a._values().sum() * x,
    "transposed, returned": lambda a, x: a.t(),
    "in a list": lambda a, x: torch.cat([a, a]).to_dense(),
    "out=": lambda a, x: torch.mm(a, x, out=torch.empty(NODES, 3)),
    "made inside": lambda a, x: torch.sparse.mm(x.relu().to_sparse(), x.t()),
}


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("name", OTHERWISE)
def test_other_uses_are_refused_by_name(name: str, is_held: bool) -> None:
    matrix, x = _links(0).to_sparse(), torch.randn(NODES, 3)
    before = matrix.to_dense()
    given = (x,) if is_held else (matrix, x)
    function = (lambda x: OTHERWISE[name](matrix, x)) if is_held else OTHERWISE[name]
    with pytest.raises(UnsupportedTensor, match="sparse"):
        dovetail.compile(function)(*given)
    assert torch.equal(matrix.to_dense(), before)


def test_matrices_that_require_a_gradient_are_refused() -> None:
    matrix, x = _links(0).to_sparse().requires_grad_(), torch.randn(NODES, 3)
    with pytest.raises(UnsupportedTensor, match="sparse"):
        dovetail.compile(torch.sparse.mm)(matrix, x)
    with pytest.raises(UnsupportedTensor, match="sparse"):
        dovetail.compile(lambda x: matrix @ x)(x)


@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize(("layout", "product"), rotated(CASES, 6))
def test_frozen_modules(layout: str, product: str, is_buffer: bool, tmp_path: Path) -> None:
    matrix, x = LAYOUTS[layout](_links(0)), _weight(0).detach()
    net = Net(matrix, PRODUCTS[product], is_buffer=is_buffer).eval()
    expected = _results(net, x)
    if expected[0] == "forward":
        return
    frozen = dovetail.freeze(net, (x,))
    assert _are_same(_results(frozen, x), expected)
    frozen.save(tmp_path / "net.dovetail")
    with pytest.raises(BadArtifact, match="is not an operator that a file can name"):
        dovetail.load(tmp_path / "net.dovetail")  # places of values in memory come from the file
    names = ("sparse_product", "product_by_sparse", "sparse_addmm")
    loaded = dovetail.load(tmp_path / "net.dovetail", allow=tuple(f"dovetail::{name}" for name in names))
    assert _are_same(_results(loaded, x), expected)


def test_a_sparse_argument_of_a_frozen_module_is_refused() -> None:
    class Product(nn.Module):
        def forward(self, matrix: Tensor, x: Tensor) -> Tensor:
            return matrix @ x

    with pytest.raises(NotFreezable, match="sparse"):
        dovetail.freeze(Product(), (_links(0).to_sparse(), torch.randn(NODES, 3)))
