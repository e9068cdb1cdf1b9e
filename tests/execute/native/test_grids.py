"""Tensors of rows with gaps between them, and rows that are copied: halves of a matrix, gates of a cell, `cat`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.claims import Claim, claim_of
from dovetail.execute.native.copies import copy_claim
from dovetail.execute.native.grids import Grid, grid_of
from dovetail.execute.native.rows import are_apart
from dovetail.ir.program import Program, TensorMeta, Value
from tests.execute.native.programs import CPU, aten, calls_counted, compiled, drawn_elements, outcome
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")

_SHAPES = ((6, 8), (4, 96), (33, 17), (3, 4, 6), (2, 3, 5, 7), (1, 40), (40, 1), (2, 130), (12,), (5, 0))
_POINTWISE: tuple[tuple[Any, int, dict[str, Any]], ...] = (
    (aten.sigmoid.default, 1, {}),
    (aten.tanh.default, 1, {}),
    (aten.exp.default, 1, {}),
    (aten.silu.default, 1, {}),
    (aten.relu_.default, 1, {}),
    (aten.sigmoid_.default, 1, {}),
    (aten.clone.default, 1, {}),
    (aten.add.Tensor, 2, {"alpha": -0.5}),
    (aten.mul.Tensor, 2, {}),
    (aten.maximum.default, 2, {}),
    (aten.sigmoid_backward.default, 2, {}),
    (aten.addcmul.default, 3, {"value": 0.5}),
    (aten.mul_.Tensor, 2, {}),
    (aten.copy_.default, 2, {}),
    (aten.lt.Tensor, 2, {}),
)


def _drawn(seed: int) -> tuple[Segment, Program]:
    """A program over parts of tensors: views of them, pointwise operators on these, and copies side by side."""
    generator, draft = random.Random(seed), Segment()
    dtype, shape = generator.choice((torch.float32, torch.float32, torch.float64)), list(generator.choice(_SHAPES))
    values: list[Value] = []
    for _ in range(2):
        start = generator.randrange(3)
        values.append(draft.input(drawn_elements(generator, math.prod(shape) + start, dtype)[start:].view(shape)))
    if generator.random() < 0.3 and shape[-1]:  # memory of no bytes has no address to tell it by
        values.append(draft.input(drawn_elements(generator, shape[-1], dtype).expand(shape)))
    inputs = len(values)
    for _ in range(generator.randint(6, 24)):
        try:
            values += _drawn_results(generator, draft, values)
        except (RuntimeError, IndexError):
            continue
    outputs = [value for value in values[inputs:] if generator.random() < 0.3]
    return draft, draft.program([*outputs, *draft.inputs])


def _drawn_results(generator: random.Random, draft: Segment, values: list[Value]) -> list[Value]:
    latest = values[-8:] if generator.random() < 0.6 else values
    x = generator.choice(latest)
    shape = x.tensor.shape
    if not shape:
        raise IndexError
    dim = generator.randrange(len(shape))
    alike = [v for v in values if v.tensor.shape == shape]
    if generator.random() < 0.5:
        target, count, named = generator.choice(_POINTWISE)
        chosen = [x, *(generator.choice(alike) for _ in range(count - 1))]
        overlaps = [not are_apart(x.tensor, v.tensor) and v.tensor.storage == x.tensor.storage for v in chosen[1:]]
        if target.name().split(".")[0].endswith("_") and (0 in x.tensor.stride or any(overlaps)):
            raise IndexError
        made = draft.call(target, *chosen, **named)
        if made.tensor.dtype is torch.bool:
            made = draft.call(aten.where.self, made, generator.choice(alike), generator.choice(alike))
        return [made]
    size, last = int(shape[dim]), len(shape) - 1  # type: ignore[arg-type]
    other = generator.choice(alike)
    is_given = any(x.tensor.storage == value.tensor.storage for value in draft.inputs)
    own_split = aten.split.Tensor if is_given else aten.unsafe_split.Tensor  # whose parts count writes by themselves
    makers: list[Callable[[], list[Value]]] = [
        lambda: draft.several(aten.split.Tensor, x, max(size // 2, 1), dim),
        lambda: [draft.call(aten.transpose.int, x, dim, last - 1 if last else last)],
        lambda: draft.several(own_split, x, max(size // 3, 1), last),
        lambda: draft.several(aten.unbind.int, x, 0)[:3],
        lambda: [draft.call(aten.slice.Tensor, x, dim, size // 3, size)],
        lambda: [draft.call(aten.select.int, x, dim, size // 2)],
        lambda: [draft.call(aten.cat.default, [x, other, x], dim)],
        lambda: [draft.call(aten.stack.default, [x, other], dim)],
        lambda: [draft.call(aten.select_backward.default, x, [*shape[:dim], 3, *shape[dim:]], dim, -1)],
        lambda: [
            draft.call(aten.slice_backward.default, x, [*shape[:dim], size + 2, *shape[dim + 1 :]], dim, 1, size + 1, 1)
        ],
    ]
    return generator.choice(makers)()


def test_one_truth_value_for_all_rows_is_not_claimed() -> None:
    draft = Segment()
    flag, x = draft.input(torch.tensor(True)), draft.input(torch.randn(4, 9))
    part = draft.call(aten.slice.Tensor, x, 1, 0, 5)
    choice = draft.call(aten.where.self, flag, part, part)
    program = draft.program([draft.call(aten.neg.default, choice), choice])
    assert claim_of(program.nodes[1]) is None
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


@pytest.mark.parametrize("seed", rotated(range(600), of=50))
def test_drawn_programs(seed: int) -> None:
    draft, program = _drawn(seed)
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_drawn_programs_have_rows_and_copies() -> None:
    nodes = [node for seed in range(60) for node in _drawn(seed)[1].nodes]
    assert sum(isinstance(claim := claim_of(node), Claim) and claim.grid is not None for node in nodes) > 30
    assert sum(copy_claim(node) is not None for node in nodes) > 25


def _meta(shape: Any, stride: Any, offset: int = 0) -> TensorMeta:
    return TensorMeta(shape, stride, offset, torch.float32, CPU, 1)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (((4, 5), (5, 1)), ((4, 5), (15, 1)), Grid(4, 5, (5, 15))),
        (((4, 5), (15, 1)), ((5,), (1,)), Grid(4, 5, (15, 0))),
        (((2, 3, 5), (15, 5, 1)), ((2, 3, 5), (30, 10, 1)), Grid(6, 5, (5, 10))),
        (((2, 3, 5), (15, 5, 1)), ((2, 3, 5), (30, 5, 1)), Grid(2, 15, (15, 30))),
        (((2, 1, 5), (5, 5, 1)), ((2, 1, 5), (9, 7, 1)), Grid(2, 5, (5, 9))),
        (((2, 3, 5), (5, 10, 1)), ((2, 3, 5), (7, 14, 1)), Grid(6, 5, (5, 7))),  # both in the order of memory
        (((1, 4, 3, 8), (96, 8, 32, 1)), ((1, 4, 3, 8), (288, 8, 96, 1)), Grid(3, 32, (32, 96))),
        (((2, 3, 5), (5, 10, 1)), ((2, 3, 5), (21, 7, 1)), None),
        (((4, 5), (5, 1)), ((4, 5), (5, 1)), None),  # there is one row
        (((4, 1), (1, 1)), ((4, 1), (3, 1)), Grid(4, 1, (1, 3))),  # elements do not lie side by side
        (((2, 4), (4, 1)), ((2, 4), (8, 2)), Grid(8, 1, (1, 2))),
        (((4,), (3,)), ((1,), (1,)), Grid(4, 1, (3, 0))),
        (((2, 3), (3, 1)), ((2, 3), (7, 2)), None),
        (((300,), (1,)), ((300,), (2,)), None),  # torch's kernels are faster
        (((4,), (0,)), ((4,), (2,)), None),  # what is written would overlap
        (((4, 5), (5, 1)), ((4, 5), (1, 4)), None),
        (((4, 5), (5, 1)), ((4, 1), (1, 1)), None),
        (((2, 3, 5), (60, 20, 1)), ((2, 3, 5), (30, 7, 1)), None),
        (((4, 5), (3, 1)), ((4, 5), (5, 1)), None),  # what is written would overlap
    ],
)
def test_how_tensors_lie_in_rows(first: Any, second: Any, found: Grid | None) -> None:
    assert grid_of([_meta(*first), _meta(*second)]) == found


def test_columns_of_one_matrix_are_apart() -> None:
    assert are_apart(_meta((4, 5), (15, 1)), _meta((4, 5), (15, 1), 5))
    assert not are_apart(_meta((4, 5), (15, 1)), _meta((4, 5), (15, 1), 4))


def test_a_cell_of_gates_is_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    torch.manual_seed(0)
    cell = nn.GRUCell(5, 33)
    x, h = torch.randn(7, 5), torch.randn(7, 33)
    with torch.no_grad():
        code = dovetail.compile(cell, executors=("native", "aten"))
        assert torch.equal(code(x, h), cell(x, h))
        (graph,) = code.graphs
    assert set(answers) == {0}
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):  # else there is no code for a sigmoid
        assert "split" not in graph.forward.source.split("else:")[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_shares_of_threads_end_within_rows(threads: int) -> None:
    """Each thread has its own last elements, in the middle of a row."""

    def function(x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        return torch.sigmoid(first) * second.tanh()

    x = torch.randn(901, 2 * 37)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            code = dovetail.compile(function, executors=("native", "aten"))
            assert torch.equal(code(x), function(x))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.uint8])
def test_copies_of_any_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft = Segment()
    x, y = (draft.input(torch.randn(8, 16).to(dtype)) for _ in range(2))
    made = draft.call(aten.cat.default, [x, y, x], 1)
    part = draft.call(aten.slice.Tensor, made, 1, 2, 34)
    program = draft.program([draft.call(aten.stack.default, [part, part], 1), *draft.inputs])
    results = [compiled(program, native=native)(draft.arguments())[0] for native in (True, False)]
    assert torch.equal(*results)
    assert answers == [0]
