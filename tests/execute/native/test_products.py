"""Products of matrices in clusters: the calls that torch makes, on addresses, with views that do not run."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.clusters import clusters_of
from dovetail.execute.native.products import blas_call, product_claim
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Value
from tests.execute.native.programs import aten, calls_counted, compiled, outcome
from tests.execute.native.segments import Segment, drawn_matrix, drawn_segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("seed", rotated(range(400), of=20))
def test_drawn_segments(seed: int) -> None:
    draft, program = drawn_segment(seed)
    expected = outcome(compiled(program, native=False), draft.arguments())
    code = compiled(program)
    assert outcome(code, draft.arguments()) == expected
    assert outcome(code, draft.arguments()) == expected, "the second time"


@pytest.mark.parametrize("seed", rotated(range(100), of=20))
def test_drawn_segments_take_no_more_memory(seed: int) -> None:
    draft, program = drawn_segment(seed)
    code, plain = compiled(program), compiled(program, native=False)
    peaks = [measure_peak(run, draft.arguments()).peak_bytes for run in (plain, plain, code, code)]
    assert peaks[3] <= peaks[1]


def test_drawn_segments_have_products(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    products = 0
    for seed in range(12):
        draft, program = drawn_segment(seed)
        code = compiled(program)
        code(draft.arguments())
        products += sum(code.executors.owner(n).name == "native" for n in program.nodes if "mm" in str(n.target))
    assert products > 10
    assert len(answers) > 10
    assert set(answers) == {0}


@pytest.mark.parametrize("seed", rotated(range(40), of=20))
def test_each_form_of_a_product(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is claimed gives torch's bits; products of matrices that BLAS can read are claimed."""
    answers = calls_counted(monkeypatch)
    generator = random.Random(seed)
    sizes = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 64, 65, 100, 128)
    draft, readable = Segment(), 0
    dtype = generator.choice((torch.float32, torch.float64))
    outputs = []
    for _ in range(6):
        m, k, n = (generator.choice(sizes) for _ in range(3))
        first, second = drawn_matrix(generator, m, k, dtype), drawn_matrix(generator, k, n, dtype)
        start = generator.choice((torch.randn(n), torch.randn(m, n), torch.randn(m, 1), torch.tensor(2.0), None))
        a, b = draft.input(first), draft.input(second)
        if start is None:
            outputs.append(draft.call(aten.mm.default, a, b))
        else:
            outputs.append(draft.call(aten.addmm.default, draft.input(start.to(dtype)), a, b))
        matrices: Any = [(tuple(x.shape), x.stride()) for x in (first, second, draft.real[outputs[-1]])]
        call = blas_call(*matrices)
        readable += call is not None and not any(call.copied)
    program = draft.program([*outputs, *draft.inputs])
    code = compiled(program)
    assert sum(code.executors.owner(node).name == "native" for node in program.nodes) in (0, *range(readable, 7))
    assert readable < 2 or answers == [] or set(answers) == {0}
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def _net() -> tuple[Segment, Any]:
    """Forward, and a part of a backward, of a layer."""
    draft = Segment()
    x, weight, bias = (draft.input(torch.randn(*shape)) for shape in ((4, 6), (5, 6), (5,)))
    turned = draft.call(aten.t.default, weight)
    made = draft.call(aten.addmm.default, bias, x, turned)
    y = draft.call(aten.relu_.default, made)
    back = draft.call(aten.mm.default, y, draft.call(aten.t.default, turned))
    gradient = draft.call(aten.mm.default, draft.call(aten.t.default, y), x)
    return draft, draft.program([y, back, gradient])


def test_two_threads_at_once() -> None:
    """Each call has memory of its own."""
    draft = Segment()
    x = draft.input(torch.randn(64, 64))
    first = draft.call(aten.relu_.default, draft.call(aten.mm.default, x, x))
    second = draft.call(aten.mm.default, first, x)
    program = draft.program([draft.call(aten.mm.default, second, x), x])
    code = compiled(program)
    assert len(code.executors.groups) == 1
    expected = outcome(code, draft.arguments())
    found: list[bool] = []

    def run() -> None:
        found.extend(outcome(code, draft.arguments()) == expected for _ in range(100))

    callers = [threading.Thread(target=run) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 200


def test_views_become_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _net()
    code = compiled(program)
    native = code.source[code.source.index("try:") : code.source.index("else:")]
    assert ".t()" not in native
    assert native.count("native_call(") == 1
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]


def test_views_that_are_read_later_run_after_the_call() -> None:
    draft, program = _net()
    turned = draft.nodes[-2].results()[0]  # a view of what the run made in place
    program = draft.program([*program.outputs, turned, draft.call(aten.sum.default, turned)])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_a_product_behind_an_address() -> None:
    """A slice of what the run made, and one of an input: both lie behind the first element."""
    draft = Segment()
    x, y = draft.input(torch.randn(8, 6)[2:]), draft.input(torch.randn(6, 6))
    product = draft.call(aten.mm.default, x, y)
    part = draft.call(aten.slice.Tensor, product, 0, 2, 5)
    other = draft.call(aten.slice.Tensor, y, 0, 3, 6)
    result = draft.call(
        aten.mm.default, draft.call(aten.t.default, other), draft.call(aten.slice.Tensor, part, 0, 0, 3)
    )
    program = draft.program([result, product, x, y])
    code = compiled(program)
    rows = [row for cluster in clusters_of(program, lambda _: True) for row in cluster.rows]
    assert any(address is not None and address.behind for row in rows for address in row.pointers)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_what_torch_computes_in_another_way_is_not_claimed() -> None:
    draft = Segment()
    a, b = draft.input(torch.randn(3, 4)), draft.input(torch.randn(4, 5))
    bias, wide = draft.input(torch.randn(5)), draft.input(torch.randn(4, 70_000))
    half = [draft.input(torch.randn(4, 4, dtype=torch.bfloat16)) for _ in range(2)]
    none = draft.input(torch.randn(4, 0))
    draft.call(aten.mm.default, a, b)
    draft.call(aten.addmm.default, bias, a, b, alpha=2)
    draft.call(aten.addmm.default, bias, a, b, beta=0)
    draft.call(aten.addmm.default, bias, a, b, beta=True)
    draft.call(aten.mm.default, a, wide)
    draft.call(aten.mm.default, *half)
    draft.call(aten.mm.default, a, none)
    assert [product_claim(node) is not None for node in draft.nodes] == [True, *[False] * 6]


@pytest.mark.parametrize("seed", rotated(range(60), of=15))
def test_operands_that_are_copied(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded operands, and those with gaps between their elements, are copied as torch copies them: the same bits."""
    answers = calls_counted(monkeypatch)
    generator, draft = random.Random(seed), Segment()
    dtype, outputs = generator.choice((torch.float32, torch.float64)), list[Value]()

    def drawn(rows: int, columns: int) -> Value:
        whole = torch.randn(2 * rows, 3 * columns, dtype=dtype)
        makers = (
            lambda: whole[::2, ::3],
            lambda: whole[:1, :1].expand(rows, columns),
            lambda: whole[:rows, :1].expand(rows, columns),
            lambda: whole[:1, :columns].expand(rows, columns),
            torch.randn(3 * columns, 2 * rows, dtype=dtype)[::3, ::2].t,
            lambda: whole[:rows, :columns],
        )
        return draft.input(generator.choice(makers)())

    for _ in range(5):
        m, k, n = (generator.choice((1, 2, 7, 16, 33, 64)) for _ in range(3))
        a, b = drawn(m, k), drawn(k, n)
        made = draft.call(aten.mm.default, a, b)
        outputs += [made, draft.call(aten.relu.default, made)]
        outputs.append(draft.call(aten.addmm.default, draft.input(torch.randn(n, dtype=dtype)), a, b))
    program = draft.program([*outputs, *draft.inputs])
    products = [node for node in program.nodes if "mm" in str(node.target)]
    assert all(product_claim(node) is not None for node in products)
    code, plain = compiled(program), compiled(program, native=False)
    assert outcome(code, draft.arguments()) == outcome(plain, draft.arguments())
    assert set(answers) <= {0}
    peaks = [measure_peak(run, draft.arguments()).peak_bytes for run in (plain, plain, code, code)]
    assert peaks[3] <= peaks[1]


def test_gradient_of_a_sum_through_a_layer() -> None:
    """Ones for each element are one element, expanded: products with them are in the one call of all the rest."""
    draft = Segment()
    x, weight, ones = (draft.input(torch.randn(shape)) for shape in ((64, 32), (1, 32), ()))
    y = draft.call(aten.tanh.default, x)
    gradient = draft.call(aten.expand.default, ones, [64, 1])
    back = draft.call(aten.mm.default, gradient, weight)
    of_weight = draft.call(aten.mm.default, draft.call(aten.t.default, gradient), y)
    program = draft.program([draft.call(aten.tanh_backward.default, back, y), of_weight, x, weight, ones])
    code = compiled(program)
    assert len(code.executors.groups) == 1
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_products_in_less_precision_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`set_float32_matmul_precision` may let torch multiply in bfloat16: it is asked in each call."""
    answers = calls_counted(monkeypatch)
    draft, program = _net()
    code, plain = compiled(program), compiled(program, native=False)
    former = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        expected = outcome(plain, draft.arguments())
        assert outcome(code, draft.arguments()) == expected
        assert answers == []
    finally:
        torch.set_float32_matmul_precision(former)
    assert outcome(code, draft.arguments()) == outcome(plain, draft.arguments())
    assert answers == [0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_forward_and_backward(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 1))

    def function(x: Tensor) -> Tensor:
        return model(x)

    made = dovetail.compile(function, executors=("native", "aten"), dynamic=dynamic)
    for rows in (4, 1, 33):
        found = []
        for run in (function, made):
            x = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows)).requires_grad_()
            model.zero_grad()
            y = run(x)
            (y * y).sum().backward()
            found.append([y.detach(), x.grad, *(p.grad for p in model.parameters())])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]
    assert len(answers) >= 3
    assert set(answers) == {0}
