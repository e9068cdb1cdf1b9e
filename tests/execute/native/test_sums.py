"""Sums and means in clusters: the order of additions is torch's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from dovetail.execute.native.sums import sum_claim
from tests.execute.native.programs import aten, calls_counted, compiled, drawn_elements, outcome
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")

_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 255, 256, 257)


@pytest.mark.parametrize("seed", rotated(range(120), of=20))
def test_drawn_sums(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is claimed gives torch's bits, and all sums of elements that lie in order are claimed."""
    answers = calls_counted(monkeypatch)
    generator, draft, outputs = random.Random(seed), Segment(), []
    dtype = generator.choice((torch.float32, torch.float64))
    for _ in range(6):
        shape = [generator.choice(_SIZES) for _ in range(generator.randint(1, 3))]
        while torch.Size(shape).numel() >= 32_768:
            shape.pop()
        count = len(shape)
        flat = drawn_elements(generator, torch.Size(shape).numel() + 1, dtype)
        if generator.random() < 0.7:
            flat = torch.randn(len(flat), dtype=dtype)
        x = draft.input(flat[generator.randrange(2) :][: torch.Size(shape).numel()].view(shape))
        some = generator.randint(1, count)
        dims = list(range(some)) if generator.random() < 0.5 else list(range(count - some, count))
        kept = generator.random() < 0.5
        made = generator.choice((aten.sum.dim_IntList, aten.mean.dim))
        total = generator.choice((aten.sum.default, aten.mean.default))
        if generator.random() < 0.4:
            other = draft.input(drawn_elements(generator, torch.Size(shape).numel(), dtype).view(shape))
            outputs.append(draft.call(aten.mse_loss.default, x, other, generator.choice((1, 2))))
        outputs.append(draft.call(total, x) if generator.random() < 0.3 else draft.call(made, x, dims, kept))
    assert all(sum_claim(node).is_proven() for node in draft.nodes)  # type: ignore[union-attr]
    program = draft.program([*outputs, *draft.inputs])  # nobody frees them meanwhile
    code = compiled(program)
    assert all(code.executors.owner(node).name == "native" for node in program.nodes)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]


def test_others_are_not_claimed() -> None:
    draft = Segment()
    x, large, none = (draft.input(torch.randn(*shape)) for shape in ((6, 4, 5), (33_000,), (0, 3)))
    turned = draft.input(torch.randn(5, 6).t())
    whole, one = draft.input(torch.arange(6)), draft.input(torch.randn(1))
    calls: list[tuple[Any, Any]] = [
        (draft.call(aten.sum.dim_IntList, x, [0]), True),
        (draft.call(aten.sum.dim_IntList, x, [-1, -2]), True),
        (draft.call(aten.sum.dim_IntList, x, [], True), True),
        (draft.call(aten.sum.dim_IntList, x, [1]), False),
        (draft.call(aten.sum.dim_IntList, x, [0, 2]), False),
        (draft.call(aten.sum.default, x, dtype=torch.float64), False),
        (draft.call(aten.sum.default, large), False),
        (draft.call(aten.sum.default, none), False),
        (draft.call(aten.sum.default, turned), False),
        (draft.call(aten.sum.default, whole), False),
        (draft.call(aten.mse_loss.default, x, x), True),
        (draft.call(aten.mse_loss.default, turned, turned), False),
        (draft.call(aten.mse_loss.default, x, one), False),
        (draft.call(aten.mse_loss.default, large, large), False),
    ]
    assert [sum_claim(node) is not None for node in draft.nodes] == [claimed for _, claimed in calls]


def test_a_sum_between_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is summed is written by one loop, and the sum is read by another."""
    answers = calls_counted(monkeypatch)
    draft = Segment()
    x, bias = draft.input(torch.randn(20, 33)), draft.input(torch.randn(33))
    y = draft.call(aten.tanh.default, x)
    total = draft.call(aten.sum.dim_IntList, y, [0], True)
    draft.call(aten.add_.Tensor, bias, draft.call(aten.view.default, total, [33]), alpha=-0.1)
    draft.call(aten.mul_.Tensor, y, 2.0)
    program = draft.program([draft.call(aten.mean.default, y)])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]
    assert code.source.count("native_call(") == 1
