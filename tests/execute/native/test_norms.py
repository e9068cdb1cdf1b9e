"""Norms in clusters: sums of squares in the order of torch's kernel, to the last element."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.norms import norm_claim
from tests.execute.native.programs import aten, calls_counted, compiled, outcome
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")

_SHAPES = ((1,), (3,), (4,), (7,), (8,), (15,), (64,), (100,), (1001,), (), (5, 7), (64, 33), (2, 3, 4), (1, 9), (9, 1))


def _drawn(generator: random.Random, dtype: torch.dtype) -> Tensor:
    shape = generator.choice(_SHAPES)
    x = torch.randn(math.prod(shape) + 3, dtype=dtype)[generator.randrange(4) :][: math.prod(shape)].view(shape)
    if generator.random() < 0.3:
        x = x * 10.0 ** torch.randint(-8, 9, shape)
    if x.numel() and generator.random() < 0.1:
        x.view(-1)[generator.randrange(x.numel())] = generator.choice((math.inf, math.nan, 1e-42))
    return x.mT if x.dim() > 1 and generator.random() < 0.4 else x


@pytest.mark.parametrize("seed", rotated(range(120), of=20))
def test_drawn_norms(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all elements, in whatever order they lie, and over the last dimensions; some written to a given tensor."""
    answers = calls_counted(monkeypatch)
    generator, draft, outputs = random.Random(seed), Segment(), []
    dtype = generator.choice((torch.float32, torch.float64))
    for _ in range(6):
        x = _drawn(generator, dtype)
        operand, dims = draft.input(x), None
        if x.dim() > 1 and x.is_contiguous() and generator.random() < 0.5:
            dims = [-1]
        if dims is None and generator.random() < 0.3:
            made = draft.call(
                aten.linalg_vector_norm.out,
                operand,
                2.0,
                out=draft.call(aten.neg.default, draft.input(torch.ones([], dtype=dtype))),
            )
        else:
            made = draft.call(aten.linalg_vector_norm.default, operand, 2, dims, generator.random() < 0.5)
        outputs += [made, draft.call(aten.add.Tensor, made, 1e-6)]
    program = draft.program([*outputs, *draft.inputs])
    claims = [norm_claim(node) for node in program.nodes if "vector_norm" in str(node.target)]
    assert all(claim is not None and claim.is_proven() for claim in claims)
    expected = outcome(compiled(program, native=False), draft.arguments())
    assert outcome(compiled(program), draft.arguments()) == expected
    assert set(answers) <= {0}


def test_other_norms_are_left_to_torch() -> None:
    draft = Segment()
    x, gaps = draft.input(torch.randn(6, 8)), draft.input(torch.randn(6, 16)[:, ::2])
    empty, half = draft.input(torch.randn(0)), draft.input(torch.randn(6, dtype=torch.bfloat16))
    large, rows = draft.input(torch.randn(200, 300)), draft.input(torch.randn(8, 6).t())
    draft.call(aten.linalg_vector_norm.default, x)
    draft.call(aten.linalg_vector_norm.default, x, 1.0)
    draft.call(aten.linalg_vector_norm.default, x, math.inf)
    draft.call(aten.linalg_vector_norm.default, x, 2.0, [0])
    draft.call(aten.linalg_vector_norm.default, x, dtype=torch.float64)
    draft.call(aten.linalg_vector_norm.default, rows, 2.0, [1])
    for other in (gaps, empty, half, large):
        draft.call(aten.linalg_vector_norm.default, other)
    assert [norm_claim(node) is not None for node in draft.nodes] == [True, *[False] * 9]


def _clipped(foreach: bool | None) -> Callable[[], Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x, y = torch.randn(8, 6), torch.randn(8, 3)

    def step() -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05, foreach=foreach)
        optimizer.step()
        return loss.detach(), norm

    return step


@pytest.mark.parametrize("foreach", [None, True, False])
def test_a_clipped_step_is_one_call(foreach: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    eager, step = _clipped(foreach), dovetail.compile_step(_clipped(foreach))
    for turn in range(5):
        expected, found = eager(), step()
        assert all(map(torch.equal, expected, found)), turn
        if turn < 4:
            answers.clear()
    assert answers == [0]
