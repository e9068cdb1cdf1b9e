"""Operands that are broadcast: a row for all rows, a number for each, in every place and of known and unknown sizes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.execute.native.claims import Claim, claim_of
from dovetail.execute.native.repeats import ENDLESS, Repeat, repeat_of
from dovetail.ir.program import Program, TensorMeta, Value
from tests.execute.native.programs import CPU, aten, calls_counted, compiled, drawn_elements, outcome, rows_counted
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")

_SHAPES = ((6,), (4, 6), (3, 4, 6), (33, 17), (2, 3, 5, 7), (1, 40), (40, 1), (300, 3), (5, 64), (0, 4), (), (2, 1, 5))
_CALLS: tuple[tuple[Any, int, dict[str, Any]], ...] = (
    (aten.add.Tensor, 2, {}),
    (aten.add.Tensor, 2, {"alpha": -0.5}),
    (aten.sub.Tensor, 2, {"alpha": 2}),
    (aten.mul.Tensor, 2, {}),
    (aten.div.Tensor, 2, {}),
    (aten.addcmul.default, 3, {"value": 0.5}),
    (aten.addcdiv.default, 3, {"value": -2}),
    (aten.lt.Tensor, 2, {}),
    (aten.maximum.default, 2, {}),
    (aten.tanh.default, 1, {}),
    (aten.sigmoid.default, 1, {}),
    (aten.copy_.default, 2, {}),
    (aten.add_.Tensor, 2, {}),
    (aten.mul_.Tensor, 2, {}),
    (aten.addcmul_.default, 3, {"value": 1}),
)


def _drawn(seed: int) -> tuple[Segment, Program]:
    """A program over tensors of one shape, and others that are broadcast to it, some of them expanded or turned."""
    generator, draft = random.Random(seed), Segment()
    dtype, shape = generator.choice((torch.float32, torch.float32, torch.float64)), generator.choice(_SHAPES)

    def given(sizes: list[int]) -> Value:
        start = generator.randrange(3)
        flat = drawn_elements(generator, math.prod(sizes) + start, dtype)[start:]
        return draft.input(flat.view(sizes))

    values = [given(list(shape)) for _ in range(3)]
    for _ in range(4):
        sizes = [size if generator.random() < 0.6 else 1 for size in shape]
        value = given(sizes[generator.randrange(len(sizes) + 1) :] if generator.random() < 0.4 else sizes)
        if generator.random() < 0.4:
            value = draft.call(aten.expand.default, value, list(shape))
        if generator.random() < 0.2 and len(value.tensor.shape) > 1:
            value = draft.call(aten.transpose.int, value, -1, -2)
        values.append(value)
    truths: list[Value] = []
    for _ in range(generator.randint(4, 12)):
        target, count, named = generator.choice(_CALLS)
        chosen = [generator.choice(values) for _ in range(count)]
        first = chosen[0].tensor
        if target.name().endswith("_") and (
            0 in first.stride or any(v.tensor.storage == first.storage for v in chosen[1:])
        ):
            continue
        try:
            made = draft.call(target, *chosen, **named)
            if truths and generator.random() < 0.3:
                values.append(draft.call(aten.where.self, generator.choice(truths), made, generator.choice(values)))
        except RuntimeError:
            continue
        (truths if made.tensor.dtype is torch.bool else values).append(made)
    outputs = [value for value in (*values[7:], *truths) if generator.random() < 0.4]
    return draft, draft.program([*outputs, *draft.inputs])


@pytest.mark.parametrize("seed", rotated(range(600), of=50))
def test_drawn_programs(seed: int) -> None:
    draft, program = _drawn(seed)
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_drawn_programs_repeat_operands() -> None:
    claims = [claim_of(node) for seed in range(40) for node in _drawn(seed)[1].nodes]
    assert sum(claim is not None and any(isinstance(x, Repeat) for x in claim.hows) for claim in claims) > 60


def _meta(shape: Any, stride: Any) -> TensorMeta:
    return TensorMeta(shape, stride, 0, torch.float32, CPU, 1)


@pytest.mark.parametrize(
    ("shape", "stride", "found"),
    [
        ((5,), (1,), Repeat(1, 5, (0,))),
        ((3, 5), (5, 1), Repeat(1, 15, (0, 1))),
        ((3, 1), (1, 1), Repeat(5, 3, (0,))),
        ((2, 1, 1), (1, 1, 1), Repeat(15, ENDLESS)),
        ((2, 3, 1), (3, 1, 1), Repeat(5, ENDLESS)),
        ((2, 3, 5), (0, 0, 1), Repeat(1, 5, (2,))),
        ((1,), (1,), Repeat(ENDLESS, 1)),
        ((2, 3, 5), (15, 5, 1), None),
        ((2, 1, 5), (5, 5, 1), None),
        ((3, 5), (1, 3), None),
        ((5,), (2,), None),
        ((7, 2, 3, 5), (30, 15, 5, 1), None),
    ],
)
def test_how_operands_are_repeated(shape: Any, stride: Any, found: Repeat | None) -> None:
    assert repeat_of(_meta(shape, stride), _meta((2, 3, 5), (15, 5, 1))) == found


@pytest.mark.parametrize(
    ("shape", "stride", "found"),
    [
        ((1, 3, 1, 1), (3, 1, 1, 1), Repeat(1, 3, (1,))),
        ((3, 1, 1), (1, 1, 1), Repeat(1, 3, (0,))),
        ((1, 1, 4, 5), (20, 20, 5, 1), Repeat(3, ENDLESS)),
        ((4, 1), (1, 1), Repeat(15, ENDLESS)),
        ((5,), (1,), Repeat(3, 5, (0,))),
        ((1, 3, 4, 1), (12, 4, 1, 1), None),
        ((1, 3, 1, 5), (15, 1, 15, 3), Repeat(1, 15, (3, 1))),
    ],
)
def test_how_operands_are_repeated_for_channels_last(shape: Any, stride: Any, found: Repeat | None) -> None:
    assert repeat_of(_meta(shape, stride), _meta((1, 3, 4, 5), (60, 1, 15, 3))) == found


@pytest.mark.parametrize("seed", range(6))
def test_images_with_channels_last(seed: int) -> None:
    generator, draft = random.Random(seed), Segment()
    x = draft.input(torch.randn(1, 5 + seed, 7, 9).to(memory_format=torch.channels_last))
    shapes = [(1, 5 + seed, 1, 1), (5 + seed, 1, 1), (7, 9), (7, 1), (1, 5 + seed, 1, 9), (9,)]
    values = [x, *(draft.input(torch.randn(shape)) for shape in shapes)]
    for _ in range(8):
        target, count, named = generator.choice(_CALLS[:11])
        made = draft.call(target, values[-1] if count == 1 else x, *generator.sample(values, count - 1), **named)
        values.append(made if made.tensor.dtype is torch.float32 else x)
    program = draft.program([*values[len(shapes) + 1 :], *draft.inputs])
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_one_loop_with_a_bias_and_a_factor_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_counted(monkeypatch)
    draft = Segment()
    x, bias, factor = (draft.input(torch.randn(*shape)) for shape in ((300, 7), (7,), (300, 1)))
    y = draft.call(aten.add.Tensor, x, bias)
    y = draft.call(aten.tanh.default, draft.call(aten.mul.Tensor, y, factor))
    program = draft.program([y, *draft.inputs])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert rows == [2], "one takes the result's memory, and one loop computes it"


def test_an_expanded_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a mean: one number for all elements, and no operand that has the result's memory layout."""
    answers = calls_counted(monkeypatch)
    draft = Segment()
    gradient, x = draft.input(torch.randn(())), draft.input(torch.randn(4, 33))
    shares = draft.call(aten.div.Scalar, draft.call(aten.expand.default, gradient, [4, 33]), 132)
    program = draft.program([draft.call(aten.mul.Tensor, shares, x), *draft.inputs])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]
    assert "aten.expand" not in code.source.split("else:")[0]


def test_eagers_last_elements_are_those_of_each_row() -> None:
    """Which of two zeros is the larger one depends on the place in a row, so such operands are left to eager."""
    draft = Segment()
    x, row = draft.input(torch.randn(4, 33)), draft.input(torch.randn(33))
    draft.call(aten.maximum.default, x, row)
    claim = claim_of(draft.nodes[0])
    assert isinstance(claim, Claim)
    assert not claim.is_proven()


@pytest.mark.parametrize("sizes", [(5, 6), (7, 33), (1, 6), (64, 2)])
def test_sizes_that_are_not_known(sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh((x + row) * column)
        return y.square() - x * row.unsqueeze(0).expand_as(x), y * column

    answers = calls_counted(monkeypatch)
    code = dovetail.compile(function, executors=("native", "aten"), dynamic=True)
    for count in (9, sizes[0]):
        x, row, column = torch.randn(count, sizes[1]), torch.randn(sizes[1]), torch.randn(count, 1)
        assert all(map(torch.equal, code(x, row, column), function(x, row, column)))
    assert set(answers) == {0}


def test_a_row_of_weights_for_one_row_is_no_repetition() -> None:
    draft = Segment()
    x, weight = (draft.input(torch.randn(shape)) for shape in ((1, 1, 40), (40,)))
    scaled = draft.call(aten.mul.Tensor, weight, draft.call(aten.exp.default, x))
    program = draft.program([scaled])
    claim = claim_of(draft.nodes[-1])
    assert claim is not None
    assert claim.hows == (False, False)
    code = compiled(program)
    assert code.executors.groups
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
