"""Products of matrices in machine code of dovetail's own: near the exact ones, the same for any number of threads."""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native import blocked_products
from dovetail.execute.native.block_shapes import AVX2, BLOCK, FEWEST, Form, Shape, items_of_share, shares_of
from dovetail.execute.native.blocked_products import BlockedClaim
from dovetail.execute.native.blocked_text import blocked_text
from dovetail.execute.native.machine import function_of, has_vectors, unavailable
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(
    bool(unavailable()) or not has_vectors(AVX2.lanes), reason="no machine code can be made here"
)

_EPS = torch.finfo(torch.float32).eps
_FORMS = [Form(turned) for turned in itertools.product((False, True), repeat=2)]
_SIZES = (1, 2, 3, 7, 8, 9, 11, 13, 16, 17, 31, 32, 33, 64, 97, 145, BLOCK, BLOCK + 1, 2 * BLOCK + 9)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch, rows_made: dict[type, set[Node]]) -> set[Node]:
    """As on a processor where they are used; gives the nodes whose rows were made."""
    monkeypatch.setattr(blocked_products, "is_wanted", lambda: True)
    return rows_made[BlockedClaim]


def _bound(first: Tensor, second: Tensor) -> Tensor:
    """Of the error of sums in blocks: that of each product, and of as many additions as come one after the other."""
    inner = first.shape[1]
    return (inner + -(-inner // BLOCK) + 2) * _EPS * (first.abs().double() @ second.abs().double())


def _run(form: Form, shape: Shape, tensors: list[Tensor], parts: Sequence[tuple[float, float]] = ((0, 1),)) -> None:
    """Run parts of the work, one after the other: each from and to a fraction of it."""
    made, first, second, *start = tensors
    sizes = (made.shape[0], first.shape[1], made.shape[1])
    pitches = [each.stride(int(turned)) for each, turned in zip((first, second), form.turned, strict=True)]
    share = items_of_share(form, shape, *sizes)
    numbers = [*sizes, *pitches, share, start[0].stride(0) if start else 0, bool(start)]
    items = shares_of(form, shape, sizes[0], sizes[2]) * share
    address = function_of(blocked_text(form, shape, f"tried{shape.lanes}"), f"tried{shape.lanes}", ())
    pointers = [each.data_ptr() for each in (*tensors, made)[:4]]
    slots = struct.pack(f"{5 + len(numbers)}q", items, *pointers, *numbers)
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)(address or 0)
    for begin, end in parts:
        function(slots, int(begin * items), int(end * items))


@pytest.mark.parametrize("seed", rotated(range(400), of=40))
def test_drawn_products(seed: int) -> None:
    drawn = random.Random(seed)
    form, shape = drawn.choice(_FORMS), drawn.choice((AVX2, AVX2, Shape(8, 4)))
    rows, inner, columns = drawn.choice(_SIZES[_SIZES.index(FEWEST) :]), drawn.choice(_SIZES), drawn.choice(_SIZES)

    def matrix(height: int, width: int, turned: bool) -> Tensor:
        gap = drawn.choice((0, 0, 3))
        made = torch.randn(width, height + gap) if turned else torch.randn(height, width + gap)
        return made[:, :height].t() if turned else made[:, :width]

    first, second = matrix(rows, inner, form.turned[0]), matrix(inner, columns, form.turned[1])
    start = [drawn.choice((torch.randn(columns).expand(rows, -1), torch.randn(rows, columns)))] * drawn.randrange(2)
    edges = sorted([0.0, 1.0, drawn.random(), drawn.random()])
    several = drawn.sample(list(itertools.pairwise(edges)), 3)  # as threads would run them, in any order
    found = [torch.full((rows + 1, columns), torch.nan) for _ in range(2)]
    for made, parts in zip(found, ([(0.0, 1.0)], several), strict=True):
        _run(form, shape, [made[:rows], first, second, *start], parts)
        assert made[rows].isnan().all(), "it stays within the result"
    exact = first.double() @ second.double()
    bound = _bound(first, second)
    for each in start:
        exact, bound = exact + each, bound + _EPS * (each.abs() + exact.abs())
    assert ((found[0][:rows] - exact).abs() <= bound + 1e-30).all()
    assert torch.equal(found[0][:rows], found[1][:rows])


def test_infinite_numbers() -> None:
    first, second = torch.randn(9, 20), torch.randn(20, 18)
    first[2, 3], first[5, 7], second[4, 16] = torch.inf, torch.nan, -torch.inf
    made = torch.empty(9, 18)
    _run(Form((False, False)), AVX2, [made, first, second])
    exact = first.double() @ second.double()
    assert torch.equal(made.isnan(), exact.isnan())
    assert torch.equal(made.isinf(), exact.isinf())


def _layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.addmm(b, x, w.t())) * 2


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [(32, 64, 48), (9, 300, 130), (128, 17, 16)])
def test_a_compiled_function(size: tuple[int, int, int], wanted: set[Node]) -> None:
    rows, inner, columns = size
    x, w, b = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
    with torch.no_grad():
        found = dovetail.compile(_layer, numerics="fast")(x, w, b)
        assert len(wanted) == 1
        exact = torch.relu(x.double() @ w.double().t() + b) * 2
        assert ((found - exact).abs() <= 2 * (_bound(x, w.t()) + 2 * _EPS * (b.abs() + 1))).all()
        dovetail.compile(_layer)(x, w, b)
    assert len(wanted) == 1, "not where eager's bits are wanted"


@pytest.mark.parametrize(
    ("first", "second"),
    [((4, 8), (8, 32)), ((32, 8), (8, 8)), ((1100, 8), (8, 32))],
    ids=["few rows", "few columns", "many rows"],
)
def test_a_library_multiplies_others(first: tuple[int, int], second: tuple[int, int], wanted: set[Node]) -> None:
    x, y = torch.randn(first), torch.randn(second)
    with torch.no_grad():
        found = dovetail.compile(lambda x, y: (x @ y).relu(), numerics="fast")(x, y)
    assert torch.equal(found, (x @ y).relu())
    assert not wanted


def _step_of(dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64, bias=False), nn.LayerNorm(64)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    x, y = torch.randn(32, 64).to(dtype), torch.randn(32, 64).to(dtype)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, list(model.parameters())


@pytest.mark.usefixtures("threads")
def test_a_step(wanted: set[Node]) -> None:
    exact, exact_weights = _step_of(torch.float64)
    eager, eager_weights = _step_of(torch.float32)
    step, weights = _step_of(torch.float32)
    compiled = dovetail.compile_step(step, numerics="fast")
    for _ in range(4):
        exact(), eager(), compiled()
    assert len(wanted) >= 5, "two forward, two for weights, one for inputs"
    for found, one, other in zip(weights, eager_weights, exact_weights, strict=True):
        assert (found - other).abs().max() <= 4 * (one - other).abs().max() + _EPS
    peaks = [measure_peak(run, []).peak_bytes for run in (lambda _: eager(), lambda _: compiled())]
    assert peaks[1] <= peaks[0]
